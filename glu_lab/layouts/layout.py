"""A storage convention as data: one frozen dataclass a layout, no arrays.

A row says how the tensors of one FFN lie in a file: their names, the order of their axes, how
branches are packed, which stored branch is activated and by what exact function. It says nothing
about values; `glu_lab.layouts.plan` walks it.

Dimension letters: D d_model, F d_ff, N branches, L layers, E experts, P tensor-parallel degree.
"""

import dataclasses
import re
from typing import Literal

from glu_lab.errors import LayoutError
from glu_lab.layouts.axes import has_field, parse
from glu_lab.spec.activation import Activation
from glu_lab.spec.checks import check_choices
from glu_lab.spec.variants import branches_of

#: The canonical parameters of `glu_lab.layers.ffn`: input projections ``wi (D, N, F)``, output
#: projection ``wo (F, D)``, a bias ``bi_<i> (F,)`` a branch, a product bias ``bp (F,)``, an output
#: bias ``bo (D,)``, learned scalars ``phi_<i>_<name> ()``. One row of a layout holds one kind.
Piece = Literal["wi", "wo", "bi", "bp", "bo", "phi"]

#: Canonical axes of one FFN's part of a piece, for one branch.
PIECE_AXES: dict[str, tuple[str, ...]] = {
    "wi": ("embed", "mlp"),
    "wo": ("mlp", "embed"),
    "bi": ("mlp",),
    "bp": ("mlp",),
    "bo": ("embed",),
    "phi": (),
}

#: Pieces of which there is one a branch.
BRANCH_PIECES = ("wi", "bi", "phi")

_NAME_FIELDS = {"expert", "branch", "scalar"}
_PREFIX_FIELDS = {"layer"}
_FIELD = re.compile(r"\{([^{}]*)\}")


def fields_of(template: str) -> set[str]:
    """The ``{fields}`` of a name template."""
    return set(_FIELD.findall(template))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor of an FFN.

    Attributes:
        name: its name after the prefix, with ``{expert}``, ``{branch}``, ``{scalar}`` fields.
        holds: the canonical piece that it contains.
        axes: its axes in stored order, outermost first: ``embed`` (D), ``mlp`` (F), ``branch``,
            ``layer``, ``expert``. Parentheses join axes into one stored dimension, the first the
            slowest: ``(branch mlp) embed`` is ``[W_0; W_1]`` of shape (N·F, D). ``layer?`` and
            ``expert?`` may be absent.
        branches: the branches that it holds, by their number in the layout's function, in stored
            order: ``(1, 0)`` is value first. Empty: one tensor a branch where the name has
            ``{branch}``, otherwise all branches in order.
        interleave: with ``(mlp branch)``, the width of the blocks that alternate: 1 is
            ``a0 b0 a1 b1 …``, 32 is ``a0…a31 b0…b31 a32…``.
        only: restricts the row to FFNs of ``one`` branch or of ``several``, where names differ.
        optional: a bias that a config may leave out.
    """

    name: str
    holds: Piece
    axes: str
    branches: tuple[int, ...] = ()
    interleave: int = 1
    only: Literal["", "one", "several"] = ""
    optional: bool = False

    def __post_init__(self):
        check_choices(self)
        groups = parse(self.axes)
        factors = [factor for group in groups for factor in group.factors]
        where = f"tensor {self.name!r}"
        unknown = fields_of(self.name) - _NAME_FIELDS
        if unknown:
            raise LayoutError(
                f"{where}: unknown field {sorted(unknown)[0]!r}; a name has fields "
                f"{', '.join(sorted(_NAME_FIELDS))}, {{layer}} stands in the prefix."
            )
        wanted = set(PIECE_AXES[self.holds])
        held = {f for f in factors if f in ("embed", "mlp")}
        if held != wanted:
            raise LayoutError(
                f"{where} holds {self.holds!r}, whose axes are "
                f"{' '.join(PIECE_AXES[self.holds]) or '(none)'}; its axes {self.axes!r} have "
                f"{' '.join(sorted(held)) or '(none)'}."
            )
        for field in ("expert", "branch"):
            if has_field(groups, field) and f"{{{field}}}" in self.name:
                raise LayoutError(f"{where} has {field!r} both in its name and among its axes.")
        if self.holds not in BRANCH_PIECES and (
            "branch" in factors or "{branch}" in self.name or self.branches
        ):
            raise LayoutError(f"{where}: there is one {self.holds!r}, not one a branch.")
        if self.holds == "phi" and "{scalar}" not in self.name:
            raise LayoutError(f"{where} holds learned scalars; its name needs {{scalar}}.")
        if len(set(self.branches)) != len(self.branches) or any(b < 0 for b in self.branches):
            raise LayoutError(f"{where}: branches {self.branches} must be distinct and ≥ 0.")
        if self.holds in BRANCH_PIECES and "branch" not in factors:
            if len(self.branches) > 1:
                raise LayoutError(
                    f"{where} holds branches {self.branches} without an axis 'branch'."
                )
            if not self.branches and "{branch}" not in self.name:
                raise LayoutError(f"{where}: say which branch it holds, for example branches=(0,).")
        blocks = any(
            "mlp" in group.factors
            and "branch" in group.factors
            and group.factors.index("mlp") < group.factors.index("branch")
            for group in groups
        )
        if self.interleave < 1 or (self.interleave > 1 and not blocks):
            raise LayoutError(
                f"{where}: interleave={self.interleave} needs an axis '(mlp branch)'; with "
                f"{self.axes!r} it must be 1."
            )

    @property
    def interleaved(self) -> bool:
        """Whether branches alternate in blocks along one stored dimension."""
        return any(
            "mlp" in group.factors
            and "branch" in group.factors
            and group.factors.index("mlp") < group.factors.index("branch")
            for group in parse(self.axes)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """Where in a model the FFNs of one stack stand.

    Attributes:
        template: everything before a tensor's own name, ``"model.layers.{layer}.mlp."``. Without
            ``{layer}`` all layers are stacked in the tensor (or there is one FFN).
        stack: ``decoder``, ``encoder``, or another name for FFNs that must not be mixed; empty for
            an FFN that stands alone.
        first: number in the name of layer 0.
        step: difference of the numbers of two neighbouring layers.
    """

    template: str
    stack: str = ""
    first: int = 0
    step: int = 1

    def __post_init__(self):
        unknown = fields_of(self.template) - _PREFIX_FIELDS
        if unknown or self.template.count("{layer}") > 1:
            raise LayoutError(
                f"prefix {self.template!r} may have the field {{layer}}, once, and no other."
            )
        if self.first < 0 or self.step < 1:
            raise LayoutError(f"prefix {self.template!r} needs first ≥ 0 and step ≥ 1.")

    @property
    def has_layer(self) -> bool:
        """Whether the layer's number stands in the name."""
        return "{layer}" in self.template

    def at(self, layer: int | None) -> str:
        """The prefix of one layer."""
        if not self.has_layer:
            return self.template
        assert layer is not None
        return self.template.replace("{layer}", str(self.first + self.step * layer))


#: An FFN whose tensors carry their own names alone; every layout knows it.
BARE = Prefix(template="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A config attribute that decides the function.

    Attributes:
        attribute: its name, dotted where nested.
        values: value → variant text of `glu_lab.spec.variants` (or an activation, where a list
            names each branch). Values that no row lists are refused, never approximated.
    """

    attribute: str
    values: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function:
    """Which function the stored branches compute; their numbers refer to this order.

    Attributes:
        variant: the function, where the convention itself fixes it.
        rules: config attributes that decide it; the first that a config states holds.
        each_branch: the attribute is a list with the activation of each branch.
        also: functions that tensors may be of though no value of an attribute says so.
        assumes: config attributes of which one value only is handled, as JSON text.
        note: what else a reader has to know.
    """

    variant: str = ""
    rules: tuple[Rule, ...] = ()
    each_branch: bool = False
    also: tuple[str, ...] = ()
    assumes: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def __post_init__(self):
        if self.variant and self.rules:
            raise LayoutError(
                f"function has both variant={self.variant!r} and rules; one of them decides."
            )
        if self.each_branch and (len(self.rules) != 1 or self.variant or self.also):
            raise LayoutError("a function with each_branch has one rule, and nothing else.")
        for text in self.texts():
            if self.each_branch:
                Activation.parse(text)
            else:
                branches_of(text)

    def texts(self) -> tuple[str, ...]:
        """Every variant text (or activation, with `each_branch`) that it names."""
        ruled = (text for rule in self.rules for _, text in rule.values)
        return tuple(
            dict.fromkeys((*((self.variant,) if self.variant else ()), *ruled, *self.also))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a convention was seen.

    Attributes:
        project: repository or package.
        revision: commit, version or date of what was read.
        file: path in it.
        symbol: class, function or table.
    """

    project: str
    revision: str = ""
    file: str = ""
    symbol: str = ""

    def __str__(self) -> str:
        project = f"{self.project} {self.revision}".strip()
        place = "::".join(part for part in (self.file, self.symbol) if part)
        return f"{project}, {place}" if place else project


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """One storage convention: one row of the table.

    Attributes:
        name: its name, lower case with hyphens.
        summary: one line for people.
        aliases: further names of the same row.
        model_types: values of a config's ``model_type`` (``general.architecture`` in GGUF) whose
            FFNs are stored so.
        prefixes: where FFNs stand in whole models; the first of a stack is used for writing.
        tensors: the stored tensors.
        num_branches: N; 0 where any number fits.
        function: what they compute.
        biases: how optional biases go together: ``all`` or none of them, or ``each`` by itself.
        bias_attribute: the config attribute that decides them.
        claims: patterns (``*`` matches anything) of names after a prefix that belong to the FFN: a
            tensor there that the row does not know is an error, not a bystander. Empty: all names
            after a prefix that ends below the layer, none after one that ends with it.
        outside: pattern → what it is, for tensors among those that are no part of the FFN.
        refused: pattern → why, for tensors whose presence makes the FFN another function.
        per_rank: whether the convention itself writes one file a tensor-parallel rank.
        sources: where it was seen.
        notes: traps.
    """

    name: str
    summary: str
    tensors: tuple[Tensor, ...]
    aliases: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    prefixes: tuple[Prefix, ...] = ()
    num_branches: int = 0
    function: Function = Function()
    biases: Literal["all", "each"] = "all"
    bias_attribute: str = ""
    claims: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    per_rank: bool = False
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        check_choices(self)
        for name in (self.name, *self.aliases):
            if not re.fullmatch(r"[a-z0-9]+([-_.][a-z0-9]+)*", name):
                raise LayoutError(
                    f"layout name {name!r} must be lower-case letters and digits joined by hyphens."
                )
        if self.num_branches < 0:
            raise LayoutError(f"layout {self.name!r}: num_branches must be ≥ 0 (0: any).")
        names = [(tensor.name, tensor.only) for tensor in self.tensors]
        for name in set(names):
            if names.count(name) > 1:
                raise LayoutError(f"layout {self.name!r} has two tensors named {name[0]!r}.")
        for n in self.branch_counts():
            self._check_pieces(n)
        if self.function.variant and len(branches_of(self.function.variant)) != self.num_branches:
            raise LayoutError(
                f"layout {self.name!r} has num_branches={self.num_branches}; its function "
                f"{self.function.variant!r} has {len(branches_of(self.function.variant))}."
            )

    def branch_counts(self) -> tuple[int, ...]:
        """The numbers of branches that its FFNs may have; up to three where any will do."""
        if self.num_branches:
            return (self.num_branches,)
        function = self.function
        if function.each_branch or not function.texts():
            return (1, 2, 3)
        return tuple(sorted({len(branches_of(text)) for text in function.texts()}))

    def _check_pieces(self, n: int) -> None:
        rows = self.rows(n)
        for piece in ("wi", "wo"):
            if not any(row.holds == piece for row in rows):
                raise LayoutError(f"layout {self.name!r} has no tensor for {piece!r}.")
        for piece in PIECE_AXES:
            held: list[int] = []
            for row in rows:
                if row.holds == piece:
                    held += row.branches or range(n if piece in BRANCH_PIECES else 1)
            if piece in BRANCH_PIECES and held and sorted(held) != list(range(n)):
                raise LayoutError(
                    f"layout {self.name!r}: its {piece!r} tensors hold branches {sorted(held)}; an "
                    f"FFN of {n} has each of {list(range(n))} once."
                )
            if piece not in BRANCH_PIECES and len(held) > 1:
                raise LayoutError(f"layout {self.name!r} has {len(held)} tensors for {piece!r}.")

    def rows(self, num_branches: int) -> tuple[Tensor, ...]:
        """The tensors of an FFN with so many branches."""
        wanted = ("", "one") if num_branches == 1 else ("", "several")
        return tuple(tensor for tensor in self.tensors if tensor.only in wanted)

    def branches_of(self, row: Tensor, num_branches: int) -> tuple[int, ...]:
        """The branches that a row's tensors hold, in stored order."""
        return row.branches or tuple(range(num_branches))

    def all_prefixes(self) -> tuple[Prefix, ...]:
        """The known prefixes, and that of an FFN alone."""
        return (*self.prefixes, BARE)
