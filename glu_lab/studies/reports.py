"""What a sweep leaves beside its runs: the table in two formats, and the figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.files.atomic import write_text
from glu_lab.studies.render import render
from glu_lab.studies.study import Member, Study
from glu_lab.studies.table import Table

FIGURES = "figures"


def write_reports(results: Path, table: Table) -> list[Path]:
    """Writes ``table.md``, ``table.json`` and, where there is anything to draw, the figures.

    Args:
        results: the study's folder.
        table: its table.

    Returns:
        The files written.

    Raises:
        RecordError: when a file cannot be written, or a run's metrics cannot be read.
    """
    # Imported here: matplotlib takes longer than all that is needed to say that nothing is missing.
    from glu_lab.studies.plots import draw, load_curves

    paths = []
    for suffix in ("md", "json"):
        path = Path(results) / f"table.{suffix}"
        write_text(path, render(table, suffix))
        paths.append(path)
    return paths + draw(table, load_curves(results), Path(results) / FIGURES)


def describe_budgets(study: Study, members: Sequence[Member]) -> list[dict[str, Any]]:
    """One entry a point: realised width and budget of one FFN, and differences to the baseline."""
    entries: dict[str, dict[str, Any]] = {}
    for member in members:
        entry = entries.setdefault(
            member.point,
            {
                "point": member.point,
                "variant": member.variant,
                "d_ff": member.d_ff,
                "ffn_params": member.params,
                "ffn_param_delta": member.param_delta,
                "model_param_delta": _model_delta(study, members, member),
                "macs_per_token": member.macs_per_token,
                "mac_delta": member.mac_delta,
                "steps": member.experiment.training.steps,
                "seeds": [],
            },
        )
        entry["seeds"].append(member.seed)
    return list(entries.values())


def _model_delta(study: Study, members: Sequence[Member], member: Member) -> int | None:
    """Difference of whole models where only their FFNs differ; else it is not this sum."""
    counts: Mapping[str, int] = {m.point: m.num_ffns for m in members}
    if study.budget == "none" or counts.get(study.baseline, member.num_ffns) != member.num_ffns:
        return None
    return member.param_delta * member.num_ffns
