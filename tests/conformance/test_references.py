"""The oracle against code that nobody here wrote: torch, transformers, x-transformers, JAX."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layouts import LAYOUTS, from_canonical
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import functions, packing
from glu_lab.spec import variant
from glu_lab.spec.activation import Activation
from glu_lab.spec.variants import VARIANTS

D, F, T = 6, 10, 5

#: Both tails, zeros of both signs, and the dips of the GELUs between.
X = np.concatenate([np.linspace(-6, 6, 1201), [0.0, -0.0, -30.0, 30.0, 2.27, -2.7]])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def assert_phi(activation, value, derivative=None, learned=None, at=X):
    """To 1e-14 of 1 and of the value: theirs have errors of their own, of some ulp."""
    want = functions.value(activation, at, learned)
    np.testing.assert_allclose(np.asarray(value), want, rtol=1e-12, atol=1e-14)
    if derivative is not None:
        want = functions.derivative(activation, at, learned)
        np.testing.assert_allclose(np.asarray(derivative), want, rtol=1e-12, atol=1e-14)


TORCH = {
    "linear": lambda F_, x: x * 1.0,
    "relu": lambda F_, x: F_.relu(x),
    "relu2": lambda F_, x: F_.relu(x) ** 2,
    "gelu_erf": lambda F_, x: F_.gelu(x),
    "gelu_tanh": lambda F_, x: F_.gelu(x, approximate="tanh"),
    "silu": lambda F_, x: F_.silu(x),
    "quick_gelu": lambda F_, x: x * F_.sigmoid(1.702 * x),
    "swish(1.5)": lambda F_, x: F_.silu(1.5 * x) / 1.5,
    "sigmoid": lambda F_, x: F_.sigmoid(x),
    "tanh": lambda F_, x: F_.tanh(x),
}


@pytest.mark.parametrize("name", TORCH)
def test_phi_and_its_derivative_are_torchs(name):
    torch = pytest.importorskip("torch")
    x = torch.tensor(X, requires_grad=True)
    y = TORCH[name](torch.nn.functional, x)
    y.sum().backward()
    assert_phi(Activation.parse(name), y.detach(), x.grad)


ACT2FN = {
    "linear": "linear",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


#: Absolute errors of those that write 1 + tanh or 1 + erf, which cancels on the left: 1e-16·|x|.
#: gelu_fast has √(2/π) to ten digits, 4e-12 of the argument.
CANCELLING = {"gelu_new": 1e-14, "gelu_python": 1e-14, "gelu_fast": 2e-12}


@pytest.mark.parametrize("name", ACT2FN)
def test_phi_is_that_of_transformers_under_its_name(name):
    torch = pytest.importorskip("torch")
    activations = pytest.importorskip("transformers.activations")
    x = torch.tensor(X, requires_grad=True)
    y = activations.ACT2FN[name](x)
    y.sum().backward()
    value, slope = y.detach().numpy(), x.grad.numpy()
    if name in CANCELLING:
        want = functions.value(Activation(ACT2FN[name]), X)
        np.testing.assert_allclose(value, want, rtol=0, atol=CANCELLING[name])
        return
    assert_phi(Activation(ACT2FN[name]), value, slope)


def test_xielu_is_that_of_transformers_with_its_learned_scalars():
    torch = pytest.importorskip("torch")
    activations = pytest.importorskip("transformers.activations")
    module = activations.XIELUActivation(dtype=torch.float64)
    scalars = {"p": 0.37, "n": -0.21}
    with torch.no_grad():
        module.alpha_p.fill_(scalars["p"])
        module.alpha_n.fill_(scalars["n"])
    x = torch.tensor(X, requires_grad=True)
    y = module._xielu_python(x)
    y.sum().backward()
    # Its constants are bfloat16 numbers: β = 0.5, and ε = −1e-6 to three digits.
    eps = float(module.eps)
    assert float(module.beta) == 0.5 and eps == pytest.approx(-1e-6, rel=4e-3)
    activation = Activation("xielu", (0.5, eps))
    assert_phi(activation, y.detach(), None, scalars)
    away = np.abs(X) > 1e-5  # torch.min shares the slope between equals
    np.testing.assert_allclose(
        x.grad.numpy()[away], functions.derivative(activation, X, scalars)[away], rtol=1e-12
    )
    by = functions.by_learned(activation, X, scalars)
    for name in scalars:
        gradient = float(getattr(module, f"alpha_{name}").grad.sum())
        assert gradient == pytest.approx(float(by[name].sum()), rel=1e-10)


JAX = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


@pytest.mark.parametrize("name", JAX)
def test_phi_is_that_of_jax_nn(name):
    x = jnp.asarray(X)
    value, slope = JAX[name](x), jax.vmap(jax.grad(JAX[name]))(x)
    want, steep = (f(Activation(name), X) for f in (functions.value, functions.derivative))
    # Its tanh-GELU cancels on the left: absolute errors of 1e-16·|x|, and of x³ in the slope.
    np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slope, steep, rtol=1e-12, atol=1e-12)


# Whole sublayers.


def arrays(spec, seed=0):
    rng = np.random.default_rng(seed)
    params = {n: 0.8 * rng.normal(size=shape) for n, shape in oracle.shapes(spec).items()}
    return params, rng.normal(size=(T, D)), rng.normal(size=(T, D))


def assert_ffn(spec, params, x, upstream, y, by_x, grads):
    """To 1e-12 of the largest element: sums of at most 20 terms in other orders."""
    wanted_x, wanted = oracle.backward(params, x, spec, upstream)
    pairs = {"output": (y, oracle.forward(params, x, spec)), "x": (by_x, wanted_x)}
    assert grads.keys() == wanted.keys()
    pairs.update({name: (grads[name], wanted[name]) for name in wanted})
    for name, (got, want) in pairs.items():
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-12 * scale, err_msg=name)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_and_its_gradients_are_torchs_autograd(name, bias):
    torch = pytest.importorskip("torch")
    spec = variant(name, d_model=D, d_ff=F, bias=bias)
    params, x, upstream = arrays(spec)
    # gpt-oss's bounds in reach.
    x = 4 * x
    held = {key: torch.tensor(value, requires_grad=True) for key, value in params.items()}
    rows = torch.tensor(x, requires_grad=True)
    hidden = torch.ones(T, F, dtype=torch.float64)
    for i, branch in enumerate(spec.branches):
        a = torch.nn.functional.linear(rows, held["wi"][:, i].T, held.get(f"bi_{i}"))
        if branch.pre:
            a = a.clamp(*branch.pre)
        phi = TORCH[str(branch.activation)](torch.nn.functional, a)
        hidden = hidden * (phi + branch.offset)
    y = torch.nn.functional.linear(hidden, held["wo"].T, held.get("bo"))
    y.backward(torch.tensor(upstream))
    grads = {key: value.grad.numpy() for key, value in held.items()}
    assert_ffn(spec, params, x, upstream, y.detach().numpy(), rows.grad.numpy(), grads)


def by_layout(module, layout, spec, params, x, upstream):
    """Output and gradients of a torch module that holds parameters as a layout stores them."""
    import torch

    tensors = from_canonical(layout, params, spec)
    state = {name: torch.tensor(np.array(value)) for name, value in tensors.items()}
    assert module.state_dict().keys() == state.keys()
    module = module.double()
    module.load_state_dict(state)
    rows = torch.tensor(x, requires_grad=True)
    y = module(rows)
    y.backward(torch.tensor(upstream))
    stored = {name: value.grad.numpy() for name, value in module.named_parameters()}
    return y.detach().numpy(), rows.grad.numpy(), stored


def hugging_face():
    c = pytest.importorskip("transformers")
    small = dict(hidden_size=D, intermediate_size=F, num_attention_heads=2, num_hidden_layers=1)
    return {
        "llama": ("hf-llama", "swiglu", "llama", "LlamaMLP", c.LlamaConfig(**small)),
        "gemma": (
            "hf-gemma", "geglu_tanh", "gemma", "GemmaMLP",
            c.GemmaConfig(**small, head_dim=4, hidden_act="gelu_pytorch_tanh"),
        ),
        "phi3": ("hf-phi3", "swiglu", "phi3", "Phi3MLP", c.Phi3Config(**small, pad_token_id=0)),
        "nemotron": (
            "hf-nemotron", "relu2", "nemotron", "NemotronMLP",
            c.NemotronConfig(**small, num_key_value_heads=2),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "gemma", "phi3", "nemotron"])
def test_transformers_modules_and_their_gradients_are_the_oracle(name):
    pytest.importorskip("torch")
    layout, text, package, cls, config = hugging_face()[name]
    path = f"transformers.models.{package}.modeling_{package}"
    module = getattr(__import__(path, fromlist=[cls]), cls)(config)
    spec = variant(text, d_model=D, d_ff=F, bias=False)
    params, x, upstream = arrays(spec)
    y, by_x, stored = by_layout(module, LAYOUTS[layout], spec, params, x, upstream)
    _, wanted = oracle.backward(params, x, spec, upstream)
    # Gradients lie as the tensors do.
    grads = from_canonical(LAYOUTS[layout], wanted, spec)
    assert_ffn(spec, params, x, upstream, y, by_x, wanted)
    for key, value in stored.items():
        np.testing.assert_allclose(value, grads[key], rtol=0, atol=1e-11, err_msg=key)


@pytest.fixture(scope="module")
def x_transformers():
    pytest.importorskip("torch")
    # It decorates with torch.jit.script, which warns that it is old.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("x_transformers.x_transformers")


GATED = {"geglu_erf": {}, "swiglu": {"swish": True}, "relu2*linear": {"relu_squared": True}}


@pytest.mark.parametrize("text", GATED)
def test_x_transformers_gated_feed_forward_is_the_oracle_value_first(text, x_transformers):
    module = x_transformers.FeedForward(D, mult=F / D, glu=True, **GATED[text])
    spec = variant(text, d_model=D, d_ff=F, bias=True)
    params, x, upstream = arrays(spec)
    layout = LAYOUTS["x-transformers"]
    y, by_x, stored = by_layout(module, layout, spec, params, x, upstream)
    _, wanted = oracle.backward(params, x, spec, upstream)
    assert_ffn(spec, params, x, upstream, y, by_x, wanted)
    # Their packed gradients, read by the oracle's own index arithmetic: [linear; activated].
    proj, bias = stored["ff.0.proj.weight"].T, stored["ff.0.proj.bias"]
    how = dict(order=(1, 0), block=F)
    np.testing.assert_allclose(packing.unpack(proj, **how), wanted["wi"], atol=1e-11)
    unpacked = packing.unpack(bias, **how)
    for i in (0, 1):
        np.testing.assert_allclose(unpacked[i], wanted[f"bi_{i}"], atol=1e-11)
    gate_first = packing.unpack(proj, order=(0, 1), block=F)
    assert np.abs(gate_first - wanted["wi"]).max() > 0.1


DENSE = {"gelu_erf": {}, "silu": {"swish": True}, "relu2": {"relu_squared": True}}


@pytest.mark.parametrize("text", DENSE)
def test_x_transformers_dense_feed_forward_is_the_oracle(text, x_transformers):
    import torch

    module = x_transformers.FeedForward(D, mult=F / D, **DENSE[text]).double()
    spec = variant(text, d_model=D, d_ff=F, bias=True)
    params, x, upstream = arrays(spec)
    up, down = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    places = {
        "wi": (up.weight, lambda g: g.T[:, None]),
        "bi_0": (up.bias, lambda g: g),
        "wo": (down.weight, lambda g: g.T),
        "bo": (down.bias, lambda g: g),
    }
    with torch.no_grad():
        for name, (tensor, _) in places.items():
            value = params[name][:, 0].T if name == "wi" else params[name].T
            tensor.copy_(torch.tensor(value))
    rows = torch.tensor(x, requires_grad=True)
    y = module(rows)
    y.backward(torch.tensor(upstream))
    grads = {name: turn(tensor.grad.numpy()) for name, (tensor, turn) in places.items()}
    assert_ffn(spec, params, x, upstream, y.detach().numpy(), rows.grad.numpy(), grads)
