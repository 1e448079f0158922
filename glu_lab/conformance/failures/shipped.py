"""What is held against things that are shipped: files, conversions, studies, layouts, texts.

Most of these checks are refusals of the product; a check passes when nothing is refused.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glu_lab.conformance.failures.proposed import Comparison, Sharding
from glu_lab.conformance.failures.row import Finding
from glu_lab.conformance.failures.stored import (
    Checkpoint,
    Conversion,
    Converted,
    Folder,
)
from glu_lab.conformance.failures.wording import Report, scan
from glu_lab.errors import GluLabError
from glu_lab.files.contents import file_sha256
from glu_lab.layouts.convert import convert
from glu_lab.layouts.inventory import Inventory, take_stock
from glu_lab.layouts.lookup import find
from glu_lab.layouts.outputs import Reader
from glu_lab.layouts.proof import prove
from glu_lab.layouts.transform import to_canonical
from glu_lab.layouts.verify import verify
from glu_lab.studies.study import expand

if TYPE_CHECKING:
    from glu_lab.conformance.failures.trained import Weights

#: Nats per token by which a loss may move when weights are read anew. Reading loses nothing, and
#: the roundings of another program's sums are far below.
ALLOWED = 0.01


def _unless_refused(act: Callable[[], str | Finding], *folders: Path) -> Finding:
    """What an action finds, or the first lines of its refusal, without the folders' places."""
    try:
        found = act()
    except GluLabError as error:
        text = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        for folder in folders:
            text = text.replace(str(folder), folder.name)
        return Finding(False, f"refused: {text}")
    return found if isinstance(found, Finding) else Finding(True, found)


def reconciled(made: Checkpoint) -> Finding:
    """Every tensor is one that the Spec has in this layout, and none is missing."""

    def act() -> str:
        params = to_canonical(find(made.layout), made.tensors, made.spec)
        return f"{len(made.tensors)} tensors are the {len(params)} parameters of the Spec"

    return _unless_refused(act)


def proven(made: Converted) -> Finding:
    """Known rows through both sets of tensors, each read as its layout says, come out equal."""

    def act() -> str:
        proof = prove(
            *_inventory(made.source_layout, made.source, made),
            *_inventory(made.target_layout, made.target, made),
            every=True,
        )
        return f"known rows differ by {proof.largest:.2g}"

    return _unless_refused(act)


def _inventory(layout: str, tensors: Any, made: Converted) -> tuple[Inventory, Reader]:
    return take_stock(find(layout), tensors, made.spec), lambda key: tensors[key.rank][key.name]


def converts(made: Conversion) -> Finding:
    """A conversion is refused, or done and proven; its source stays as it was, byte for byte."""
    source, target = made.request.source, made.request.target
    before = _digests(source)

    def act() -> str:
        done = convert(made.request)
        return f"function stated by {done.function_from.split(' ')[0]}, proven by rows"

    found = _unless_refused(act, source, target)
    if _digests(source) != before:
        return Finding(False, f"{source.name} is not what it was")
    return found


def _digests(folder: Path) -> dict[str, str | None]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): file_sha256(path) for path in files}


def verified(made: Folder) -> Finding:
    """There is a manifest, and every name, shape, byte and known row is what it states."""

    def act() -> str | Finding:
        found = verify(made.path)
        if found.differences:
            first, *others = found.differences
            also = f" (and {len(others)} more)" if others else ""
            return Finding(False, f"{first.what}: {first.message}{also}")
        rows = ", known rows" if found.rows else ""
        return f"the manifest holds: {found.tensors} tensors, {found.hashed} hashes{rows}"

    return _unless_refused(act, made.path)


def matched(made: Comparison) -> Finding:
    """The study's points are at the budget that it promises."""
    return _unless_refused(lambda: f"{len(expand(made.study))} runs at equal {made.study.budget}")


def laid_out(made: Sharding) -> Finding:
    """Every parameter can be laid out by the rules."""
    return _unless_refused(lambda: f"{len(made.layouts())} parameters are laid out")


def continuous(made: "Weights") -> Finding:
    """The validation loss is what it was before the weights were read anew."""
    before, after = made.before.mean, made.after.mean
    moved = abs(after - before)
    text = f"validation loss {before:.2f} → {after:.2f} nats per token, allowed ±{ALLOWED:g}"
    measured = float(f"{moved / ALLOWED:.1g}") if math.isfinite(moved) else None
    return Finding(moved <= ALLOWED, text, measured)


def worded(made: Report) -> Finding:
    """No sentence claims what the lab may not, and every number says what it counts."""
    found = scan(made)
    if not found:
        return Finding(True, f"{made.name}: nothing that may not be said")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Finding(False, f"{made.name}: {found[0].why}: “{found[0].sentence}”{more}")
