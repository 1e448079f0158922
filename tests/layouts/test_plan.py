"""Plans: what each output needs, what is only renamed, and what a conversion keeps in memory."""

import collections
import gc
import tracemalloc

import numpy as np
import pytest

from glu_lab.errors import LayoutError
from glu_lab.layouts import LAYOUTS, Key, Prefix, find, from_canonical, plan
from glu_lab.spec import variant
from tests.layouts import rows

SPEC = variant("swiglu", d_model=4, d_ff=8)


class Header:
    """What a file says of a tensor."""

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype


def headers(tensors):
    return {name: Header(array) for name, array in tensors.items()}


def llama(layers=3, spec=SPEC, dtype="float32"):
    params = {
        name: np.concatenate([p, p])[:layers]
        for name, p in rows.random_params(spec, ("layer",), dtype).items()
    }
    return params, from_canonical(LAYOUTS["hf-llama"], params, spec, leading=("layer",))


def test_a_plan_needs_no_values_and_each_output_reads_its_few_inputs():
    params, tensors = llama()
    planned = plan(LAYOUTS["hf-llama"], LAYOUTS["megatron"], headers(tensors), SPEC, ranks=2)
    outputs = {output.key: output for output in planned.outputs}
    assert len(outputs) == 2 * 2 * 3
    fc1 = outputs[Key("decoder.layers.1.mlp.linear_fc1.weight", 1)]
    assert [key.name for key in fc1.inputs] == [
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
    ]
    assert (fc1.shape, fc1.dtype, fc1.nbytes) == ((8, 4), np.float32, 128)
    reads = collections.Counter()

    def read(key):
        reads[key.name] += 1
        return tensors[key.name]

    got = fc1.build(read)
    assert reads == {key.name: 1 for key in fc1.inputs}
    want = np.concatenate([params["wi"][1, :, i, 4:].T for i in (0, 1)])
    assert rows.bits(got) == rows.bits(want)


@pytest.mark.parametrize(
    ("source", "target", "renamed"),
    [
        ("hf-llama", "internlm2", "gate_proj up_proj down_proj"),
        ("hf-phi3", "hf-glm", "gate_up_proj down_proj"),
        ("hf-phi3", "megatron", "gate_up_proj down_proj"),
        ("hf-phi3", "olmo1", "down_proj"),
        ("hf-phi3", "hf-llama", "down_proj"),
        ("hf-llama", "maxtext-unscanned", ""),
        ("megatron-interleave-1", "megatron", "linear_fc2"),
        ("gemma-einsum", "gemma-einsum-transposed", "linear"),
    ],
)
def test_only_tensors_whose_bytes_stay_are_renamed(source, target, renamed):
    """D = F, so that no shape gives it away."""
    spec = variant("geglu_tanh" if "gemma" in source else "swiglu", d_model=4, d_ff=4)
    tensors = from_canonical(
        find(source), rows.random_params(spec, ("layer",)), spec, leading=("layer",)
    )
    planned = plan(find(source), find(target), headers(tensors), spec)
    kept = set()
    for output in planned.outputs:
        built = output.build(lambda key: tensors[key.name])
        if output.renames is not None:
            assert rows.bits(built) == rows.bits(tensors[output.renames.name])
            kept.add(output.renames.name.removesuffix(".weight").replace("/", ".").split(".")[-1])
    assert kept == set(renamed.split())


def test_peak_memory_is_the_output_and_one_input():
    """Sixteen layers into one stacked tensor: inputs are not held together."""
    spec = variant("swiglu", d_model=64, d_ff=256)
    layers = 16
    one = np.zeros((256, 64), np.float32)
    shapes = {
        f"model.layers.{i}.mlp.{name}.weight": one if name != "down_proj" else one.T
        for i in range(layers)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    planned = plan(LAYOUTS["hf-llama"], LAYOUTS["glu-lab"], headers(shapes), spec)
    wi = next(output for output in planned.outputs if output.key.name.endswith("wi"))
    assert wi.shape == (layers, 64, 2, 256)
    read = lambda key: np.ones(shapes[key.name].shape, np.float32)  # noqa: E731
    wi.build(read)
    gc.collect()
    tracemalloc.start()
    try:
        built = wi.build(read)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (built == 1).all()
    assert peak < wi.nbytes + 1.5 * one.nbytes


def test_what_is_no_part_of_an_ffn_is_listed_and_routers_are_named():
    spec = variant("swiglu", d_model=2, d_ff=3)
    layout = LAYOUTS["mixtral"]
    params = rows.random_params(spec, ("layer", "expert"))
    tensors = from_canonical(layout, params, spec, leading=("layer", "expert"))
    beside = {
        "model.layers.0.block_sparse_moe.gate.weight": np.zeros((2, 2)),
        "model.norm.weight": np.zeros(2),
    }
    planned = plan(layout, LAYOUTS["mixtral-fused"], {**tensors, **beside}, spec)
    assert dict(planned.outside) == {"model.layers.0.block_sparse_moe.gate.weight": "router"}
    assert set(planned.rest) == set(beside)
    (built,) = planned.run({**tensors, **beside})
    fused = built["model.layers.1.mlp.experts.gate_up_proj"]
    want = np.concatenate([params["wi"][1, :, :, i].transpose(0, 2, 1) for i in (0, 1)], axis=1)
    assert rows.bits(fused) == rows.bits(want)


@pytest.mark.parametrize("target", ["hf-llama", "glu-lab", "maxtext", "megatron-dist"])
@pytest.mark.parametrize("source", ["hf-phi3", "t5x-scanned", "gpt-neox", "llama-pth", "glu-lab"])
def test_any_layout_to_any_other_is_the_way_through_the_canonical_form(source, target):
    params = rows.random_params(SPEC, ("layer",))
    stack = Prefix(template="decoder/layers/ffn/", stack="decoder") if source == "glu-lab" else None
    tensors = from_canonical(find(source), params, SPEC, leading=("layer",), prefix=stack)
    if source == "t5x-scanned":
        tensors = {f"decoder/decoder/mlp/{name}": value for name, value in tensors.items()}
    (got,) = plan(find(source), find(target), tensors, SPEC).run(tensors)
    prefix = find(target).prefixes[0]
    want = from_canonical(find(target), params, SPEC, leading=("layer",), prefix=prefix)
    rows.assert_same(got, want)


def test_settings_say_what_the_targets_own_code_must_be_told():
    _, tensors = llama()
    settings = {
        name: dict(plan(LAYOUTS["hf-llama"], find(name), tensors, SPEC).settings)
        for name in ("megatron", "maxtext", "llama-pth", "hf-phi3", "gpt-neox")
    }
    assert settings == {
        "megatron": {"activation": "swiglu"},
        "maxtext": {"mlp_activations": ["silu", "linear"]},
        "llama-pth": {},
        "hf-phi3": {"hidden_act": "silu"},
        "gpt-neox": {"activation": "swiglu"},
    }


def test_outputs_that_every_rank_holds_whole_are_named():
    spec = variant("swiglu", d_model=2, d_ff=4, bias=True)
    params = rows.random_params(spec)
    planned = plan(LAYOUTS["glu-lab"], LAYOUTS["megatron"], params, spec, ranks=2)
    assert planned.replicated == ("linear_fc2.bias",)
    assert plan(LAYOUTS["glu-lab"], LAYOUTS["megatron"], params, spec).replicated == ()


def test_biases_of_zeros_are_created_only_when_asked_for():
    params, tensors = llama()
    layout = LAYOUTS["transformerlens"]
    with pytest.raises(LayoutError, match="always has 'b_in', 'b_out'.*only when asked for"):
        plan(LAYOUTS["hf-llama"], layout, tensors, SPEC)
    planned = plan(LAYOUTS["hf-llama"], layout, tensors, SPEC, zero_biases=True)
    assert planned.spec.product_bias and planned.spec.output_bias
    (built,) = planned.run(tensors)
    assert built["blocks.1.mlp.b_in"].tolist() == [0.0] * 8
    assert built["blocks.1.mlp.b_in"].dtype == np.float32
    assert rows.bits(built["blocks.2.mlp.W_gate"]) == rows.bits(params["wi"][2, :, 0])


def test_inputs_of_two_dtypes_are_not_joined():
    _, tensors = llama()
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((8, 4), np.float16)
    with pytest.raises(LayoutError, match="inputs that differ in dtype.*Nothing is cast"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], tensors, SPEC)
    # Apart they may stay what they are.
    (built,) = plan(LAYOUTS["hf-llama"], LAYOUTS["internlm2"], tensors, SPEC).run(tensors)
    assert built["model.layers.0.feed_forward.w3.weight"].dtype == np.float16


def test_an_array_of_another_dtype_than_planned_is_refused():
    _, tensors = llama()
    planned = plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], headers(tensors), SPEC)
    with pytest.raises(LayoutError, match="was planned as float32 and read as float64"):
        planned.outputs[0].build(lambda key: np.zeros((8, 4), np.float64))


def test_layers_that_are_missing_cannot_be_stacked():
    _, tensors = llama()
    some = {name: value for name, value in tensors.items() if ".1." not in name}
    with pytest.raises(LayoutError, match=r"stacks layers 0, 1, 2, … .*has layers \[0, 2\]"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["maxtext"], some, SPEC)
    planned = plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], some, SPEC)
    assert len(planned.outputs) == 4


@pytest.mark.parametrize(
    ("source", "leading", "target", "message"),
    [
        ("mixtral", ("expert",), "hf-llama", "stores one FFN a layer; the source has 2 experts"),
        ("hf-llama", (), "mixtral", "stores the FFNs of experts; the source's FFN has none"),
        ("hf-llama", (), "t5x-scanned", "has one FFN without a layer"),
        ("hf-t5-gated", ("layer",), "hf-llama", None),
        ("hf-llama", ("layer",), "phi4mm-audio", "no prefix for the FFNs of 'decoder'"),
    ],
)
def test_places_that_the_target_does_not_have(source, leading, target, message):
    params = rows.random_params(SPEC, leading)
    tensors = from_canonical(find(source), params, SPEC, leading=leading)
    if message is None:
        # An encoder's FFNs go to a decoder's place when there is one of each.
        assert plan(find(source), find(target), tensors, SPEC).outputs
        return
    with pytest.raises(LayoutError, match=message):
        plan(find(source), find(target), tensors, SPEC, zero_biases=True)


def test_unknown_places_can_be_named_on_both_sides():
    params = rows.random_params(SPEC, ("layer",))
    there = Prefix(template="tower.{layer}.block.", stack="vision", first=1)
    tensors = from_canonical(LAYOUTS["hf-llama"], params, SPEC, leading=("layer",), prefix=there)
    assert "tower.3.block.up_proj.weight" in tensors
    with pytest.raises(LayoutError, match="no tensor of an FFN is among"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], tensors, SPEC)
    here = Prefix(template="vision.layers.{layer}.mlp.", stack="vision")
    (built,) = plan(
        LAYOUTS["hf-llama"],
        LAYOUTS["hf-phi3"],
        tensors,
        SPEC,
        source_prefixes=[there],
        target_prefixes=[here],
    ).run(tensors)
    assert "vision.layers.2.mlp.gate_up_proj.weight" in built
