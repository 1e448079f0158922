"""The reports that the rooms below make, for the rules of wording; made afresh, not read."""

import re
from pathlib import Path

from glu_lab.budget import ledger
from glu_lab.conformance.failures.proposed import small_experiment
from glu_lab.conformance.failures.wording import Report
from glu_lab.layouts import LAYOUTS, markdown
from glu_lab.layouts.axes import parse
from glu_lab.layouts.layout import Layout
from glu_lab.spec.identity import run_id
from glu_lab.studies.axes import variants_matched
from glu_lab.studies.render import render
from glu_lab.studies.resolved import write_resolved
from glu_lab.studies.study import Study, expand
from glu_lab.studies.table import build_table

#: Stands for the data of runs that are never started.
_NO_DATA = "0" * 16


def reports(folder: Path) -> list[Report]:
    """Every report of the rooms below: a study's table in two formats, and the layouts' page.

    Args:
        folder: an empty one.
    """
    return [*study_reports(folder), *layout_reports()]


def study_reports(folder: Path) -> list[Report]:
    """The table of a study whose runs are still to be trained."""
    base = small_experiment()
    study = Study(
        name="wording",
        question="Which of the gated FFNs fits the text best?",
        base=base,
        axes=variants_matched(["swiglu", "relu", "geglu_tanh"], base),
        baseline="swiglu",
        seeds=(0,),
    )
    members = expand(study)
    names = [run_id(member.experiment, _NO_DATA) for member in members]
    write_resolved(folder, study, members, names, fingerprints=[_NO_DATA] * len(members))
    table = build_table(folder)
    labels = {f"{ledger(base.model.ffn).macs_per_token:,}": "one FFN"}
    return [Report(f"table.{form}", render(table, form), ledger=labels) for form in ("md", "latex")]


def layout_reports() -> list[Report]:
    """The layouts' page in three parts: what is said of all, of dense FFNs, and of experts."""
    first, *sections = re.split(r"^(?=## )", markdown(LAYOUTS), flags=re.MULTILINE)
    parts: dict[str, list[str]] = {"all": [first], "dense FFNs": [], "experts": []}
    for section in sections:
        layout = LAYOUTS.get(section.splitlines()[0].removeprefix("## "))
        of = "all" if layout is None else "experts" if _has_experts(layout) else "dense FFNs"
        parts[of].append(section)
    return [
        Report(f"layouts.md, of {of}", "".join(texts), dense=of == "dense FFNs")
        for of, texts in parts.items()
    ]


def _has_experts(layout: Layout) -> bool:
    groups = [group for row in layout.tensors for group in parse(row.axes)]
    named = any("{expert}" in row.name for row in layout.tensors)
    return named or any("expert" in group.factors for group in groups)
