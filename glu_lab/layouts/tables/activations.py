"""What each project's activation names mean, exactly.

The same word is another function elsewhere: ``gelu`` is the erf form in torch and Hugging Face and
the tanh form in JAX, TransformerEngine and ggml. Names that no `glu_lab` activation equals are left
out, so that they are refused.
"""

from collections.abc import Mapping

from glu_lab.layouts.layout import Rule

#: transformers 5.24.0, activations.py::ACT2CLS.
HUGGING_FACE = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "linear",
}

#: jax.nn and flax.linen functions by name; ``approximate=True`` is the default of ``gelu`` there.
JAX = {
    "linear": "linear",
    "gelu": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}

#: Tables that many rows share, by project.
ACTIVATION_NAMES = {"transformers": HUGGING_FACE, "JAX": JAX}

#: Legacy Gemma configs say ``gelu`` and mean the tanh form.
GEMMA_LEGACY = {**HUGGING_FACE, "gelu": "gelu_tanh"}


def dense(attribute: str, names: Mapping[str, str] = HUGGING_FACE) -> Rule:
    """A rule for one branch."""
    return Rule(attribute=attribute, values=tuple(names.items()))


def gated(attribute: str, names: Mapping[str, str] = HUGGING_FACE) -> Rule:
    """A rule for an activated branch times a linear one."""
    values = tuple((name, f"{activation}*linear") for name, activation in names.items())
    return Rule(attribute=attribute, values=values)


def listed(attribute: str, names: Mapping[str, str] = JAX) -> Rule:
    """A rule for a list with the activation of each branch."""
    return Rule(attribute=attribute, values=tuple(names.items()))
