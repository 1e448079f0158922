"""Every row against its source's own formula, written by hand in NumPy from the stored tensors.

A layout that names the wrong branch, order, orientation or block width computes another function.
"""

import math

import numpy as np
import pytest

from glu_lab.layouts import LAYOUTS, from_canonical, to_canonical
from glu_lab.spec import variant
from tests.activations.reference import FORMULAS as PHI
from tests.layers import oracle
from tests.layouts import rows

#: Layer and expert that are evaluated.
L, E = 1, 1


def lin(x, t, name):
    """``nn.Linear``: the weight is (out, in)."""
    bias = t.get(f"{name}.bias")
    return x @ t[f"{name}.weight"].T + (0.0 if bias is None else bias)


def halves(h):
    return np.split(h, 2, axis=-1)


def separate(gate, up, down):
    return lambda t, x, act: lin(act(lin(x, t, gate)) * lin(x, t, up), t, down)


def one(first, last):
    return lambda t, x, act: lin(act(lin(x, t, first)), t, last)


def packed(name, down, order="gate up"):
    def formula(t, x, act):
        a, b = halves(lin(x, t, name))
        return lin(act(a) * b if order == "gate up" else a * act(b), t, down)

    return formula


def conv1d(x, t, name):
    """GPT-2's Conv1D: the weight is (in, out)."""
    return x @ t[f"{name}.weight"] + t[f"{name}.bias"]


def kernels(t, x, act, layer=slice(None)):
    """Flax kernels (in, out), those of scanned layers with the layer at axis 1."""

    def dense(x, name):
        bias = t.get(f"{name}/bias")
        bias = 0.0 if bias is None else bias[:, layer].squeeze() if bias.ndim > 1 else bias
        kernel = t[f"{name}/kernel"]
        return x @ (kernel[:, layer] if kernel.ndim > 2 else kernel) + bias

    return dense(act(dense(x, "wi_0")) * dense(x, "wi_1"), "wo")


def fused(wi, bias, wo, out):
    def formula(t, x, act):
        h = np.einsum("td,dnf->tnf", x, t[wi]) + t[bias]
        return (act(h[:, 0]) * h[:, 1]) @ t[wo] + t[out]

    return formula


def fused_scanned(t, x, act):
    h = np.einsum("td,dnf->tnf", x, t["wi/kernel"][:, L]) + t["wi/bias"][:, L]
    return (act(h[:, 0]) * h[:, 1]) @ t["wo/kernel"][:, L] + t["wo/bias"][:, L]


def canonical(t, x, act):
    wi = t["wi"][L]
    gate, up = x @ wi[:, 0] + t["bi_0"][L], x @ wi[:, 1] + t["bi_1"][L]
    return (act(gate) * up + t["bp"][L]) @ t["wo"][L] + t["bo"][L]


def clamped(gate, up):
    """openai/gpt-oss: alpha 1.702, limit 7."""
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def hf_gpt_oss(t, x, act):
    h = x @ t["experts.gate_up_proj"][E] + t["experts.gate_up_proj_bias"][E]
    hidden = clamped(h[:, ::2], h[:, 1::2])
    return hidden @ t["experts.down_proj"][E] + t["experts.down_proj_bias"][E]


def openai_gpt_oss(t, x, act):
    h = x @ t["mlp1_weight"][E].T + t["mlp1_bias"][E]
    return clamped(h[:, ::2], h[:, 1::2]) @ t["mlp2_weight"][E].T + t["mlp2_bias"][E]


def dbrx(t, x, act):
    w1, v1, w2 = (
        t[f"experts.mlp.{name}"].reshape(rows.SIZES["expert"], -1, x.shape[1])[E]
        for name in ("w1", "v1", "w2")
    )
    return (act(x @ w1.T) * (x @ v1.T)) @ w2


def mixtral_fused(t, x, act):
    gate, up = halves(x @ t["experts.gate_up_proj"][E].T)
    return (act(gate) * up) @ t["experts.down_proj"][E].T


def gguf_experts(t, x, act):
    gate, up = (x @ t[f"ffn_{name}_exps.weight"][E].T for name in ("gate", "up"))
    return (act(gate) * up) @ t["ffn_down_exps.weight"][E].T


def gemma(equation):
    def formula(t, x, act):
        h = np.einsum(equation, x, t["gating_einsum"])
        return (act(h[:, 0]) * h[:, 1]) @ t["linear"]

    return formula


def torchtitan(t, x, act):
    h = np.einsum("td,fnd->tfn", x, t["w13"])
    return lin(act(h[..., 0]) * h[..., 1], t, "w2")


def lens(t, x, act):
    product = act(x @ t["W_gate"]) * (x @ t["W_in"])
    return (product + t["b_in"]) @ t["W_out"] + t["b_out"]


def megatron_dist(t, x, act):
    h = x @ t["linear_fc1.weight"][L].T + t["linear_fc1.bias"][L]
    gate, up = halves(h)
    return (act(gate) * up) @ t["linear_fc2.weight"][L].T + t["linear_fc2.bias"][L]


def megatron_split(t, x, act):
    gate, up = (
        x @ t[f"linear_fc1.weight_{half}"].T + t[f"linear_fc1.bias_{half}"] for half in "wv"
    )
    return lin(act(gate) * up, t, "linear_fc2")


def grouped(t):
    """One expert's tensors under the names of a dense FFN."""
    return {name[len("experts.") : -1]: value for name, value in t.items() if name.endswith(str(E))}


def interleaved(width, own=lambda t: t):
    """Blocks by a loop: [gate block, up block, gate block, …]."""

    def formula(t, x, act):
        t = own(t)
        h = lin(x, t, "linear_fc1")
        blocks = [h[:, i : i + width] for i in range(0, h.shape[1], width)]
        gate, up = np.concatenate(blocks[::2], axis=1), np.concatenate(blocks[1::2], axis=1)
        return lin(act(gate) * up, t, "linear_fc2")

    return formula


#: Layout → the source's formula of stored tensors (without a prefix), rows and activation.
FORMULAS = {
    "glu-lab": canonical,
    "t5x": kernels,
    "t5x-scanned": lambda t, x, act: kernels(t, x, act, L),
    "flaxformer-fused": fused("wi_fused/kernel", "wi_fused/bias", "wo/kernel", "wo/bias"),
    "maxtext": lambda t, x, act: kernels(t, x, act, L),
    "maxtext-unscanned": kernels,
    "maxtext-fused": fused_scanned,
    "maxtext-fused-unscanned": fused("wi/kernel", "wi/bias", "wo/kernel", "wo/bias"),
    "maxtext-moe": lambda t, x, act: (
        (act(x @ t["wi_0"][E, L]) * (x @ t["wi_1"][E, L])) @ t["wo"][E, L]
    ),
    "gemma-einsum": gemma("tf,nfh->tnh"),
    "gemma-einsum-transposed": gemma("tf,nhf->tnh"),
    "te-jax": fused("wi_kernel", "wi_bias", "wo_kernel", "wo_bias"),
    "hf-llama": separate("gate_proj", "up_proj", "down_proj"),
    "hf-gemma": separate("gate_proj", "up_proj", "down_proj"),
    "hf-phi3": packed("gate_up_proj", "down_proj"),
    "hf-glm": packed("gate_up_proj", "down_proj"),
    "phi4mm-audio": packed("gate_up_proj", "down_proj", "up gate"),
    "hf-modernbert": packed("Wi", "Wo"),
    "hf-nemotron": one("up_proj", "down_proj"),
    "hf-t5": one("wi", "wo"),
    "hf-t5-gated": separate("wi_0", "wi_1", "wo"),
    "hf-gpt2": lambda t, x, act: conv1d(act(conv1d(x, t, "c_fc")), t, "c_proj"),
    "hf-starcoder2": one("c_fc", "c_proj"),
    "hf-gpt-neox": one("dense_h_to_4h", "dense_4h_to_h"),
    "hf-bert": one("intermediate.dense", "output.dense"),
    "hf-opt": one("fc1", "fc2"),
    "mixtral": separate(f"experts.{E}.w1", f"experts.{E}.w3", f"experts.{E}.w2"),
    "mixtral-fused": mixtral_fused,
    "hf-qwen2-moe": separate(*(f"experts.{E}.{name}_proj" for name in ("gate", "up", "down"))),
    "hf-gpt-oss": hf_gpt_oss,
    "gpt-oss": openai_gpt_oss,
    "dbrx": dbrx,
    "grok-1": separate(f"{E}.linear", f"{E}.linear_v", f"{E}.linear_1"),
    "gguf-experts": gguf_experts,
    "harvard": one("w_1", "w_2"),
    "llama-pth": separate("w1", "w3", "w2"),
    "internlm2": separate("w1", "w3", "w2"),
    "qwen1": separate("w2", "w1", "c_proj"),
    "exaone": separate("c_fc_0", "c_fc_1", "c_proj"),
    "jais": lambda t, x, act: conv1d(
        conv1d(x, t, "c_fc") * act(conv1d(x, t, "c_fc2")), t, "c_proj"
    ),
    "refact": packed("gate_up_proj", "c_proj"),
    "nomic-bert": separate("fc12", "fc11", "fc2"),
    "llada": separate("ff_proj", "up_proj", "ff_out"),
    "chatglm": packed("dense_h_to_4h", "dense_4h_to_h"),
    "olmo1": packed("ff_proj", "ff_out", "up gate"),
    "gpt-neox": packed("linear1", "linear2", "up gate"),
    "x-transformers": packed("ff.0.proj", "ff.2", "up gate"),
    "flash-attn": packed("fc1", "fc2", "up gate"),
    "diffusers": packed("net.0.proj", "net.2", "up gate"),
    "torchtitan-w13": torchtitan,
    "xformers-w12": packed("w12", "w3"),
    "transformerlens": lens,
    "transformerlens-dense": lambda t, x, act: (
        act(x @ t["W_in"] + t["b_in"]) @ t["W_out"] + t["b_out"]
    ),
    "megatron": packed("linear_fc1", "linear_fc2"),
    "megatron-dist": megatron_dist,
    "megatron-dist-split": megatron_split,
    "megatron-experts": lambda t, x, act: packed("linear_fc1", "linear_fc2")(grouped(t), x, act),
    "megatron-interleave-1": interleaved(1),
    "megatron-interleave-32": interleaved(32),
    "megatron-experts-interleave-32": interleaved(32, grouped),
    "gguf": separate("ffn_gate", "ffn_up", "ffn_down"),
    "gguf-packed": packed("ffn_up", "ffn_down"),
    "gguf-dense": one("ffn_up", "ffn_down"),
}


def test_every_row_has_a_formula():
    assert FORMULAS.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", rows.NAMES)
def test_canonical_parameters_compute_the_sources_formula(name):
    layout = LAYOUTS[name]
    # Two branches where there can be; as many biases as the layout can store.
    gated = [s for s in rows.specs(layout, 5, 3 * rows.width(layout)) if s.num_branches < 3]
    spec = max(
        gated, key=lambda s: (s.num_branches, sum(b.bias for b in s.branches), s.output_bias)
    )
    leading = rows.leadings(layout)[-1] if name == "glu-lab" else rows.leadings(layout)[0]
    if name in ("glu-lab", "megatron-dist"):
        leading = ("layer",)
        spec = spec.replace(product_bias=name == "glu-lab")
    params = rows.normal_params(spec, leading)
    tensors = from_canonical(layout, params, spec, leading=leading)
    x = np.random.default_rng(1).normal(size=(4, spec.d_model))

    activated = next(
        (b.activation for b in spec.branches if b.activation.name != "linear"),
        spec.branches[0].activation,
    )
    got = FORMULAS[name](tensors, x, lambda a: PHI[activated.name](a))
    again = to_canonical(layout, tensors, spec, leading=leading if name == "glu-lab" else None)
    at = {"layer": L, "expert": E}
    own = {key: value[tuple(at[axis] for axis in leading)] for key, value in again.items()}
    # The same sums in another order.
    np.testing.assert_allclose(got, oracle.ffn(own, x, spec), rtol=1e-12, atol=1e-12)


def test_gpt_oss_clamps_both_branches_at_gate_20_and_up_minus_20():
    spec = variant("gpt_oss", d_model=1, d_ff=1)
    layout = LAYOUTS["hf-gpt-oss"]
    stored = {
        "experts.gate_up_proj": np.array([[[20.0, -20.0]]]),
        "experts.gate_up_proj_bias": np.zeros((1, 2)),
        "experts.down_proj": np.ones((1, 1, 1)),
        "experts.down_proj_bias": np.zeros((1, 1)),
    }
    params = to_canonical(layout, stored, spec)
    y = oracle.ffn({name: value[0] for name, value in params.items()}, np.ones((1, 1)), spec)
    gate = 7 / (1 + math.exp(-1.702 * 7))
    assert y[0, 0] == pytest.approx(gate * (-7 + 1), rel=1e-14)


def test_interleaved_and_concatenated_read_the_same_tensor_differently():
    """A concatenated activation over interleaved weights has the right shapes and wrong values."""
    spec = variant("swiglu", d_model=2, d_ff=64)
    params = rows.normal_params(spec)
    for name in ("megatron-interleave-1", "megatron-interleave-32"):
        stored = from_canonical(LAYOUTS[name], params, spec)
        misread = to_canonical(LAYOUTS["megatron"], stored, spec)
        assert misread["wi"].shape == params["wi"].shape
        assert not np.array_equal(misread["wi"], params["wi"])
        # The same numbers, in other places: multisets do not see it.
        assert sorted(misread["wi"].ravel()) == sorted(params["wi"].ravel())


@pytest.mark.parametrize("width", [1, 2, 4, 16, 32, 64])
def test_any_width_of_blocks_can_be_named(width):
    from glu_lab.layouts import find

    spec = variant("swiglu", d_model=2, d_ff=64)
    params = rows.normal_params(spec)
    stored = from_canonical(find(f"megatron-interleave-{width}"), params, spec)
    h = stored["linear_fc1.weight"]
    want = []
    for start in range(0, 64, width):
        for branch in (0, 1):
            want += [params["wi"][:, branch, i] for i in range(start, start + width)]
    np.testing.assert_array_equal(h, np.stack(want))
