"""Every named tensor between an FFN's input and its output: shape, bytes, and who needs it later.

This is the *shape ledger* of the plain eager policy: each step of the formula in
`glu_lab.spec.ffn` writes its result to memory, and backward keeps the values that the derivative
formulas read. A compiler may keep fewer (fusion, recomputation) or more (the parts of a
composite φ); what a given execution keeps is measured, this is counted.

Dimension letters: B sequences, S positions, T = B·S rows, D d_model, F d_ff, N branches.
"""

import dataclasses
import math

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.numerics import DTYPE_BYTES

#: A dropout mask holds one boolean an element.
MASK_BYTES = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One named tensor.

    Attributes:
        name: short name; the branch's index follows it.
        formula: how it is made from the tensors above it.
        symbols: its shape in letters.
        shape: its shape in numbers.
        row_elements: elements for one row, or None where rows share them (a shared dropout mask).
        bytes: size of the whole tensor.
        needed_by: the gradients that read it; empty when backward does not need it.
    """

    name: str
    formula: str
    symbols: tuple[str, ...]
    shape: tuple[int, ...]
    row_elements: int | None
    bytes: int
    needed_by: str = ""

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def saved(self) -> bool:
        """Whether backward needs it under the plain eager policy."""
        return bool(self.needed_by)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeLedger:
    """The tensors of one forward pass, in the order in which they are made.

    Attributes:
        spec: the FFN.
        rows: T.
        dtype: number format of the tensors.
        tensors: from ``x`` to ``y``; one object under two names stands here once.
    """

    spec: FFN
    rows: int
    dtype: str
    tensors: tuple[Tensor, ...]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            UnknownNameError: when there is none.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise UnknownNameError("tensor", name, [tensor.name for tensor in self.tensors])

    @property
    def intermediate_bytes(self) -> int:
        """Bytes of everything strictly between ``x`` and ``y``."""
        return sum(t.bytes for t in self.tensors if t.name not in ("x", "y"))

    @property
    def saved_bytes(self) -> int:
        """Bytes that the plain eager policy keeps for backward, ``x`` among them."""
        return sum(t.bytes for t in self.tensors if t.saved)


def shape_ledger(
    spec: FFN, *, rows: int = 1, dtype: str = "bfloat16", sequences: int = 1
) -> ShapeLedger:
    """Lists the named tensors of one FFN.

    Names: ``x`` input; ``a0`` pre-activation of branch 0, after bias and scale; ``c0`` its clamped
    value; ``v0`` the value of φ; ``f0`` that value clamped and offset; ``H`` the product; ``mask``
    and ``Hd`` of dropout; ``y`` output. A step that does nothing makes no tensor: a linear branch
    has no ``v``, and the hidden state of a single branch is that branch's last tensor.

    Args:
        spec: the FFN.
        rows: T, tokens of the batch.
        dtype: number format of every tensor but the mask, which holds one byte an element.
        sequences: B; matters only to a mask that is shared over positions or over the batch.

    Returns:
        The shape ledger.

    Raises:
        SpecError: for a number of rows that is not positive or not a multiple of `sequences`.
        UnknownNameError: for an unknown dtype.

    Example:
        >>> from glu_lab.spec import variant
        >>> swiglu = variant("swiglu", d_model=4096, d_ff=11008)
        >>> shape_ledger(swiglu, rows=8192).intermediate_bytes // 2**20
        688
    """
    if dtype not in DTYPE_BYTES:
        raise UnknownNameError("dtype", str(dtype), DTYPE_BYTES)
    for name, value in (("rows", rows), ("sequences", sequences)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{name} must be an integer ≥ 1, got {value!r}.")
    if rows % sequences:
        raise SpecError(f"rows={rows} is not a whole number of positions in {sequences} sequences.")
    return ShapeLedger(
        spec=spec,
        rows=rows,
        dtype=dtype,
        tensors=_Builder(spec, rows, DTYPE_BYTES[dtype], sequences).build(),
    )


class _Builder:
    """Walks the formula once, naming what each step makes."""

    def __init__(self, spec: FFN, rows: int, itemsize: int, sequences: int):
        self.spec, self.rows, self.itemsize, self.sequences = spec, rows, itemsize, sequences
        self.tensors: list[Tensor] = []

    def build(self) -> tuple[Tensor, ...]:
        spec = self.spec
        self.add("x", "input", "D", "every ∂wi")
        factors = [self.branch(i, branch) for i, branch in enumerate(spec.branches)]
        hidden = factors[0]
        if len(factors) > 1 or spec.product_bias:
            bias = " + bp" if spec.product_bias else ""
            self.add("H", "·".join(factors) + bias, "F")
            hidden = "H"
        if spec.hidden_dropout:
            self.add_mask(f"∂{hidden}")
            self.add("Hd", f"{hidden}·mask/{1 - spec.hidden_dropout:g}", "F")
            hidden = "Hd"
        self.need(hidden, "∂wo")
        scale = f"{spec.output_scale:g}·" if spec.output_scale != 1.0 else ""
        bias = " + bo" if spec.output_bias else ""
        product = f"{hidden}·wo{bias}"
        self.add("y", f"{scale}({product})" if scale and bias else scale + product, "D")
        return tuple(self.tensors)

    def branch(self, i: int, branch: Branch) -> str:
        """Adds a branch's tensors; returns the name of its factor in the product."""
        scale = f"{branch.scale:g}·" if branch.scale != 1.0 else ""
        affine = f"x·wi[:,{i}]" + (f" + bi_{i}" if branch.bias else "")
        name = f"a{i}"
        self.add(name, f"{scale}({affine})" if scale else affine, "F")
        if branch.pre is not None:
            self.need(name, f"clamp mask of c{i}")
            self.add(f"c{i}", _clamp_text(name, branch.pre), "F")
            name = f"c{i}"
        if branch.activation.name != "linear":
            learned = branch.activation.row.learned
            self.need(name, f"φ′ of v{i}" + (f", ∂{', ∂'.join(learned)}" if learned else ""))
            self.add(f"v{i}", f"{branch.activation}({name})", "F")
            name = f"v{i}"
        if branch.post is not None or branch.offset:
            if branch.post is not None:
                self.need(name, f"clamp mask of f{i}")
            text = name if branch.post is None else _clamp_text(name, branch.post)
            offset = f" {'+' if branch.offset > 0 else '−'} {abs(branch.offset):g}"
            self.add(f"f{i}", text + (offset if branch.offset else ""), "F")
            name = f"f{i}"
        if self.spec.num_branches > 1:
            self.need(name, "∂ of the other branch" + "es" * (self.spec.num_branches > 2))
        return name

    def add(self, name: str, formula: str, axis: str, needed_by: str = "") -> None:
        size = {"D": self.spec.d_model, "F": self.spec.d_ff}[axis]
        self.tensors.append(
            Tensor(
                name=name,
                formula=formula,
                symbols=("T", axis),
                shape=(self.rows, size),
                row_elements=size,
                bytes=self.rows * size * self.itemsize,
                needed_by=needed_by,
            )
        )

    def add_mask(self, needed_by: str) -> None:
        spec = self.spec
        shared = spec.hidden_dropout_shared
        if shared:
            symbols = (
                "1" if "batch" in shared else "B",
                "1" if "position" in shared else "S",
                "F",
            )
            sizes = {"1": 1, "B": self.sequences, "S": self.rows // self.sequences, "F": spec.d_ff}
            shape = tuple(sizes[letter] for letter in symbols)
        else:
            symbols, shape = ("T", "F"), (self.rows, spec.d_ff)
        keep = f"{1 - spec.hidden_dropout:g}"
        over = f", shared over {' and '.join(shared)}" if shared else ""
        self.tensors.append(
            Tensor(
                name="mask",
                formula=f"Bernoulli({keep}){over}",
                symbols=symbols,
                shape=shape,
                row_elements=None if shared else spec.d_ff,
                bytes=math.prod(shape) * MASK_BYTES,
                needed_by=needed_by,
            )
        )

    def need(self, name: str, reason: str) -> None:
        """Marks a tensor as read by backward."""
        for index, tensor in enumerate(self.tensors):
            if tensor.name == name:
                reasons = "; ".join(filter(None, (tensor.needed_by, reason)))
                self.tensors[index] = dataclasses.replace(tensor, needed_by=reasons)


def _clamp_text(name: str, clamp: tuple[float, float]) -> str:
    low, high = (
        "−∞" if bound == -math.inf else "∞" if bound == math.inf else f"{bound:g}".replace("-", "−")
        for bound in clamp
    )
    return f"clamp({name}, {low}, {high})"
