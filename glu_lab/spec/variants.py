"""Named variants: rows of one table, and a small grammar for the rest.

A variant is written as the product of its branches' activations, ``"relu2*linear"``; a name is a
short way of writing one. Names that the literature uses for two functions are refused.
"""

import dataclasses
import math
from collections.abc import Mapping

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.activation import ACTIVATIONS, OTHER_NAMES, Activation, refuse_other_name
from glu_lab.spec.ffn import FFN, Branch

_GLU_PAPER = "Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantRow:
    """One named variant.

    Attributes:
        branches: the branches in canonical slot order (the activated one first).
        source: paper or code that defines it.
        biases: whether the row's source has branch and output biases; a user's choice overrides it.
        product: the grammar text of the branches' activations.
    """

    branches: tuple[Branch, ...]
    source: str
    biases: bool = False

    @property
    def product(self) -> str:
        """The activations as grammar text, ``"silu*linear"``."""
        return "*".join(str(branch.activation) for branch in self.branches)


def _row(product: str, source: str) -> VariantRow:
    activations = map(Activation.parse, product.split("*"))
    return VariantRow(branches=tuple(Branch(activation=a) for a in activations), source=source)


def parse_product(text: str) -> tuple[Branch, ...]:
    """Reads ``"silu*linear"`` into branches.

    Raises:
        SpecError: for an empty factor, or a factor that is no activation.
    """
    parts = text.split("*")
    if any(not part.strip() for part in parts):
        raise SpecError(
            f"{text!r} is not a product of activations; write for example 'silu*linear'."
        )
    for part in map(str.strip, parts):
        row = VARIANTS.get(part)
        if row is not None and part not in ACTIVATIONS:
            raise SpecError(
                f"{part!r} in {text!r} is a variant, not an activation: it is {row.product} itself."
            )
    return tuple(Branch(activation=Activation.parse(part)) for part in parts)


VARIANTS: dict[str, VariantRow] = {
    "relu": _row("relu", "Vaswani et al. 2017 (arXiv 1706.03762)"),
    "gelu_erf": _row("gelu_erf", "Hendrycks & Gimpel 2016 (arXiv 1606.08415); BERT"),
    "gelu_tanh": _row("gelu_tanh", "Hendrycks & Gimpel 2016 (arXiv 1606.08415); GPT-2"),
    "silu": _row("silu", "Ramachandran et al. 2017 (arXiv 1710.05941), Swish with β = 1"),
    "relu2": _row("relu2", "So et al. 2021, Primer (arXiv 2109.08668)"),
    "glu": _row("sigmoid*linear", "Dauphin et al. 2016 (arXiv 1612.08083)"),
    "bilinear": _row("linear*linear", _GLU_PAPER),
    "reglu": _row("relu*linear", _GLU_PAPER),
    "geglu_erf": _row("gelu_erf*linear", _GLU_PAPER),
    "geglu_tanh": _row("gelu_tanh*linear", _GLU_PAPER),
    "swiglu": _row("silu*linear", _GLU_PAPER),
    "drelu": _row("relu*relu", "Song et al. 2024, Turbo Sparse (arXiv 2406.05955)"),
    "gpt_oss": VariantRow(
        branches=(
            Branch(activation=Activation("quick_gelu"), pre=(-math.inf, 7.0)),
            Branch(activation=Activation("linear"), pre=(-7.0, 7.0), offset=1.0),
        ),
        source="openai/gpt-oss, torch/model.py::swiglu",
        biases=True,
    ),
}

#: The twelve variants of the full ablation, in table order.
ABLATION_VARIANTS = tuple(name for name in VARIANTS if name != "gpt_oss")

#: Names that the field uses for variants, and ours that each may mean.
OTHER_VARIANTS: Mapping[str, tuple[str, ...]] = {
    **OTHER_NAMES,
    "geglu": ("geglu_erf", "geglu_tanh"),
    "gated_gelu": ("geglu_erf", "geglu_tanh"),
    "gated_silu": ("swiglu",),
    "gated_relu": ("reglu",),
    "liglu": ("bilinear",),
    "swish": ("silu", "swish(1.5)", "swish_learned"),
}

#: Signs that papers multiply branches with.
_TIMES = str.maketrans(dict.fromkeys("×⊙·∗", "*"))


def branches_of(text: str) -> tuple[Branch, ...]:
    """The branches that a variant's name or grammar text stands for.

    Raises:
        SpecError: for an ambiguous name, with the exact choices.
        UnknownNameError: for a name in neither table, with the nearest one.
    """
    name = text.strip()
    if name in VARIANTS:
        return VARIANTS[name].branches
    refuse_other_name("variant", name, OTHER_VARIANTS)
    if (written := name.translate(_TIMES)) != name:
        raise SpecError(f"{text!r}: branches are multiplied with '*'; did you mean {written!r}?")
    if "*" not in name and "(" not in name and name not in ACTIVATIONS:
        raise UnknownNameError(
            "variant",
            name,
            (*VARIANTS, *(a for a in ACTIVATIONS if a not in VARIANTS)),
            "Or write a product of activations, for example 'relu2*linear'.",
        )
    return parse_product(name)


def with_bias(branches: tuple[Branch, ...], bias: bool) -> tuple[Branch, ...]:
    """The same branches with every branch bias on or off."""
    return tuple(dataclasses.replace(branch, bias=bias) for branch in branches)


def variant(text: str, *, d_model: int, d_ff: int, bias: bool | None = None, **fields) -> FFN:
    """An FFN Spec from a variant's name or product.

    Args:
        text: ``"swiglu"`` or ``"relu2*linear"``.
        d_model: D.
        d_ff: F, taken as stated.
        bias: True for biases on every branch and on the output, False for none; None keeps what
            the named row's source has (none, but for ``gpt_oss``).
        **fields: further fields of `glu_lab.spec.FFN`.

    Returns:
        The Spec.

    Raises:
        SpecError: for names, widths or fields that describe nothing.

    Example:
        >>> variant("swiglu", d_model=8, d_ff=16).num_branches
        2
    """
    branches = branches_of(text)
    row = VARIANTS.get(text.strip())
    if bias is None:
        bias = row.biases if row else False
    fields.setdefault("output_bias", bias)
    return FFN(d_model=d_model, d_ff=d_ff, branches=with_bias(branches, bias), **fields)


def variant_name(spec: FFN) -> str:
    """The shortest text that names the branches of a Spec, biases aside.

    A row's name where one matches, the product otherwise; ``"custom:"`` before the product marks
    clamps, scales or offsets that the product's text does not say.
    """
    branches = with_bias(spec.branches, False)
    for name, row in VARIANTS.items():
        if row.branches == branches:
            return name
    product = "*".join(str(branch.activation) for branch in branches)
    plain = all(branch == Branch(activation=branch.activation) for branch in branches)
    return product if plain else f"custom:{product}"
