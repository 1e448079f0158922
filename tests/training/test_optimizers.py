"""Each matrix is updated as if it were the only one; the rules are those of optax and torch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.layers.params import Parameter, flatten, leaves, unflatten
from glu_lab.models import parameters
from glu_lab.spec.experiment import Optimizer
from glu_lab.spec.numerics import Numerics
from glu_lab.training.optimizers import build
from tests.training.small import small_model

torch = pytest.importorskip("torch")

STEPS = 3

#: Wide enough on both sides for Adafactor to factor its second moments (optax: 128).
WIDE = {
    "wi": Parameter(
        shape=(2, 130, 2, 132),
        axes=("layers", "embed", "branch", "mlp"),
        role="matrix",
        inputs=("embed",),
        outputs=("mlp",),
    ),
    "o": Parameter(
        shape=(2, 13, 10, 129),
        axes=("layers", "heads", "head", "embed"),
        role="matrix",
        inputs=("heads", "head"),
        outputs=("embed",),
    ),
    "scale": Parameter(shape=(2, 130), axes=("layers", "embed")),
}


#: So that arrays of one shape share a compilation.
COMPILED = {}


def singles(path, x):
    """The arrays that one stacked array stands for, as a person would write them out."""
    name = path.rsplit("/", 1)[-1]
    if name == "wi":
        return {(i, n): x[i, :, n, :] for i in range(x.shape[0]) for n in range(x.shape[2])}
    if name in ("q", "k", "v"):
        return {i: x[i].reshape(x.shape[1], -1) for i in range(len(x))}
    if name == "o":
        return {i: x[i].reshape(-1, x.shape[-1]) for i in range(len(x))}
    if "layers/" in path or path in WIDE:
        return {i: x[i] for i in range(len(x))}
    return {0: x}


def random_like(table, seed, scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    flat = {path: scale * rng.normal(size=p.shape).astype(dtype) for path, p in leaves(table)}
    return unflatten({path: jnp.asarray(x) for path, x in flat.items()})


def run_rule(spec, table, params, gradients, numerics=Numerics()):
    """Directions of every step, with fixed parameters, and the last state."""
    rule = build(spec, table, numerics)
    state, directions = rule.init(params), []
    update = jax.jit(rule.update)
    for grads in gradients:
        direction, state = update(grads, state, params)
        directions.append(flatten(direction))
    return directions, state


def run_alone(transformation, param, gradients):
    """The same for one array by itself."""
    param = jnp.asarray(param)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state, out = transformation.init(param), []
        update = COMPILED.setdefault(transformation.update, jax.jit(transformation.update))
        for grad in gradients:
            direction, state = update(jnp.asarray(grad), state, param)
            out.append(np.asarray(direction))
    return out


def assert_each_as_if_alone(transformation, table, directions, params, gradients, only=None):
    params, gradients = flatten(params), [flatten(g) for g in gradients]
    for path, _ in leaves(table):
        if only is not None and path not in only:
            continue
        for where, param in singles(path, np.asarray(params[path])).items():
            grads = [singles(path, np.asarray(g[path]))[where] for g in gradients]
            expected = run_alone(transformation, param, grads)
            for step in range(STEPS):
                got = singles(path, np.asarray(directions[step][path]))[where]
                # float32, and the same formula in another order of sums.
                np.testing.assert_allclose(
                    got, expected[step], rtol=2e-5, atol=1e-6, err_msg=f"{path} {where} {step}"
                )


def adafactor():
    """Shazeer & Stern 2018, as T5 uses it: no momentum, clipped, scaled by the parameter."""
    return optax.chain(
        optax.scale_by_factored_rms(decay_rate=0.8),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


@pytest.mark.slow
def test_adafactor_sees_one_layer_and_one_branch_at_a_time():
    # Layers and branches of very different sizes: statistics over the stack would mix them.
    factor = np.array([[0.01, 1.0], [5.0, 300.0]], np.float32)[:, None, :, None]
    params = random_like(WIDE, 0)
    params["wi"] = params["wi"] * jnp.asarray(factor)
    gradients = [random_like(WIDE, seed, 0.1) for seed in range(1, STEPS + 1)]
    directions, _ = run_rule(Optimizer(kind="adafactor"), WIDE, params, gradients)
    assert_each_as_if_alone(adafactor(), WIDE, directions, params, gradients)
    # The update's size follows the parameter's: branch by branch.
    first = np.asarray(directions[0]["wi"])
    rms = np.sqrt((first**2).mean(axis=(1, 3)))
    np.testing.assert_allclose(rms, factor[:, 0, :, 0], rtol=0.05)


def test_adafactor_keeps_factored_moments():
    params = random_like(WIDE, 0)
    _, state = run_rule(Optimizer(kind="adafactor"), WIDE, params, [random_like(WIDE, 1)])
    held = sum(x.size for x in jax.tree.leaves(state))
    matrices = sum(x.size for x in jax.tree.leaves({k: params[k] for k in ("wi", "o")}))
    assert held < 0.05 * matrices


@pytest.mark.slow
def test_adafactor_on_a_whole_model():
    table = parameters(small_model(tie_embeddings=False))
    params = random_like(table, 0)
    gradients = [random_like(table, seed, 0.1) for seed in range(1, STEPS + 1)]
    directions, _ = run_rule(Optimizer(kind="adafactor"), table, params, gradients)
    assert_each_as_if_alone(adafactor(), table, directions, params, gradients)


@pytest.mark.slow
def test_adamw_equals_torch():
    table = parameters(small_model(tie_embeddings=False, ffn={"bias": True}))
    # Decay acts on projections and the output head; not on embeddings, norms or biases.
    decayed = {
        f"decoder/layers/{name}"
        for name in ("attention/q", "attention/k", "attention/v", "attention/o", "ffn/wi", "ffn/wo")
    } | {"logits"}
    rate, decay = 0.05, 0.3
    spec = Optimizer(kind="adamw", b1=0.9, b2=0.95, eps=1e-8, weight_decay=decay)
    with jax.enable_x64(True):
        numerics = Numerics.uniform("float64")
        params = random_like(table, 0, dtype=np.float64)
        start = {path: torch.tensor(np.asarray(x)) for path, x in flatten(params).items()}
        assert decayed < set(start)
        groups = [
            {"params": [start[p] for p in start if p in decayed], "weight_decay": decay},
            {"params": [start[p] for p in start if p not in decayed], "weight_decay": 0.0},
        ]
        reference = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
        rule = build(spec, table, numerics)
        state = rule.init(params)
        for seed in range(1, STEPS + 1):
            grads = random_like(table, seed, dtype=np.float64)
            for path, grad in flatten(grads).items():
                start[path].grad = torch.tensor(np.asarray(grad))
            reference.step()
            direction, state = rule.update(grads, state, params)
            params = jax.tree.map(lambda p, d: p - rate * d, params, direction)
        for path, x in flatten(params).items():
            assert x.dtype == jnp.float64
            np.testing.assert_allclose(x, start[path], rtol=1e-12, atol=1e-14, err_msg=path)


@pytest.mark.slow
def test_muon_orthogonalises_each_matrix_and_leaves_the_rest_to_adam():
    table = parameters(small_model(tie_embeddings=False))
    params = random_like(table, 0)
    gradients = [random_like(table, seed, 0.1) for seed in range(1, STEPS + 1)]
    directions, _ = run_rule(Optimizer(kind="muon"), table, params, gradients)
    matrices = {path for path, p in leaves(table) if p.role == "matrix"}
    assert len(matrices) == 6

    # Liu et al. 2025: scaled by 0.2 √max(rows, columns), to the RMS of an AdamW update.
    shaped = optax.chain(
        optax.contrib.scale_by_muon(beta=0.95, nesterov=True),
        optax.stateless(lambda u, _: jax.tree.map(lambda x: 0.2 * max(x.shape) ** 0.5 * x, u)),
    )
    assert_each_as_if_alone(shaped, table, directions, params, gradients, matrices)
    adam = optax.scale_by_adam(b1=0.9, b2=0.95, eps=1e-8)
    others = {path for path, _ in leaves(table)} - matrices
    assert_each_as_if_alone(adam, table, directions, params, gradients, others)


def test_muon_brings_singular_values_into_the_band_of_newton_schulz():
    table = {name: WIDE[name] for name in ("wi", "o")}
    rng = np.random.default_rng(0)

    def conditioned(rows, columns):
        u, _, v = np.linalg.svd(rng.normal(size=(rows, columns)), full_matrices=False)
        return (u * np.geomspace(1.0, 0.1, len(v))) @ v

    wi = np.stack([[conditioned(130, 132) for _ in range(2)] for _ in range(2)])
    grads = {
        "wi": jnp.asarray(wi.transpose(0, 2, 1, 3), jnp.float32),
        "o": jnp.asarray(
            np.stack([conditioned(130, 129) for _ in range(2)]).reshape(2, 13, 10, 129),
            jnp.float32,
        ),
    }
    params = random_like(table, 0)
    directions, _ = run_rule(Optimizer(kind="muon"), table, params, [grads])
    for path, x in directions[0].items():
        for where, matrix in singles(path, np.asarray(x)).items():
            values = np.linalg.svd(matrix, compute_uv=False) / (0.2 * np.sqrt(max(matrix.shape)))
            # Jordan et al. 2024: the quintic's fixed band is about [0.7, 1.2].
            assert 0.65 < values.min() and values.max() < 1.25, (path, where)


def test_moments_are_stored_in_the_dtype_asked_for():
    table = parameters(small_model())
    params = random_like(table, 0)
    gradients = [random_like(table, seed, 0.1) for seed in range(1, STEPS + 1)]
    spec = Optimizer(kind="adamw")
    full, _ = run_rule(spec, table, params, gradients)
    directions, state = run_rule(
        spec, table, params, gradients, Numerics(optimizer_state_dtype="bfloat16")
    )
    dtypes = {x.dtype for x in jax.tree.leaves(state)}
    assert dtypes == {jnp.dtype("bfloat16"), jnp.dtype("int32")}
    for path, x in directions[-1].items():
        assert x.dtype == jnp.float32
        # Two moments of 8 bits' precision; their ratio keeps about 1 %.
        np.testing.assert_allclose(x, full[-1][path], rtol=0.05, atol=0.02)


TREES = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.text("abc_", min_size=1, max_size=3), inner, min_size=1),
    max_leaves=12,
).filter(lambda tree: isinstance(tree, dict))


@given(TREES)
def test_flatten_and_unflatten_are_inverse(tree):
    flat = flatten(tree)
    assert not any(isinstance(value, dict) for value in flat.values())
    assert unflatten(flat) == tree


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adafactor", "adamw", "muon"])
def test_a_stack_is_updated_like_its_layers_one_by_one(kind):
    """The layers of a model get the updates of as many models of one layer."""
    two, one = parameters(small_model()), parameters(small_model(num_layers=1))
    params, grads = random_like(two, 0), random_like(two, 1)
    both, _ = run_rule(Optimizer(kind=kind), two, params, [grads])
    for layer in range(2):

        def pick(tree, layer=layer):
            flat = flatten(tree)
            return unflatten(
                {p: x[layer : layer + 1] if "layers/" in p else x for p, x in flat.items()}
            )

        alone, _ = run_rule(Optimizer(kind=kind), one, pick(params), [pick(grads)])
        for path, x in alone[0].items():
            expected = both[0][path][layer : layer + 1] if "layers/" in path else both[0][path]
            np.testing.assert_allclose(x, expected, rtol=2e-5, atol=1e-6, err_msg=path)
