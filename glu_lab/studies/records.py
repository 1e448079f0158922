"""Run records: what a run directory says, read strictly.

A run directory holds ``config.json``, ``metrics.jsonl`` and, once a run has ended,
``summary.json``. Its status is what the summary says; a directory without one is ``unfinished``,
never guessed.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glu_lab.errors import GluLabError, RecordError
from glu_lab.spec.codec import decode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.variants import variant_name

#: Statuses that a summary may state.
SUMMARY_STATUSES = ("complete", "diverged", "interrupted", "failed")
#: A run directory without a summary; a member of a study without a directory.
UNFINISHED, MISSING = "unfinished", "missing"

_RUN_FILES = ("config.json", "summary.json", "metrics.jsonl")

_TEXT = ("variant", "formula", "data_fingerprint", "identity_hash")
_NUMBERS = ("params", "ffn_params", "macs_per_token", "tokens_seen", "steps")
_OPTIONAL = ("bits_per_byte", "exact_zero_fraction", "tokens_per_second", "wall_seconds")
#: Keys that every summary has; a run that is not complete holds null where nothing is known.
SUMMARY_KEYS = (
    "status",
    "log_perplexity",
    "log_perplexity_se",
    "d_ff",
    "seed",
    "execution_hash",
    "error",
    *_TEXT,
    *_NUMBERS,
    *_OPTIONAL,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of one run.

    Attributes:
        directory: the run directory.
        status: of the summary, or ``unfinished``.
        variant: name of the FFN's variant.
        d_ff: F.
        seed: of the run.
        formula: the FFN as text; empty while unfinished.
        log_perplexity: validation nats per token; None unless measured.
        bits_per_byte: None for span filling.
        params: of the whole model.
        ffn_params, macs_per_token: of one FFN.
        tokens_seen, tokens_per_second, steps, wall_seconds: of training.
        exact_zero_fraction: mean over layers of exact zeros in the branch product; None when not
            measured.
        data_fingerprint, identity_hash, execution_hash: what the run is; empty while unfinished.
        error: text of a failure.
        config: the encoded experiment; None when the directory has none.
    """

    directory: Path
    status: str
    variant: str
    d_ff: int
    seed: int
    formula: str = ""
    log_perplexity: float | None = None
    bits_per_byte: float | None = None
    params: int | None = None
    ffn_params: int | None = None
    macs_per_token: int | None = None
    tokens_seen: int | None = None
    tokens_per_second: float | None = None
    steps: int | None = None
    wall_seconds: float | None = None
    exact_zero_fraction: float | None = None
    data_fingerprint: str = ""
    identity_hash: str = ""
    execution_hash: str = ""
    error: str | None = None
    config: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def run_id(self) -> str:
        """Name of the run directory."""
        return self.directory.name


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        RecordError: naming the file, when it is unreadable, no JSON, or no object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def is_run(directory: Path) -> bool:
    """Whether a directory looks like a run's."""
    return any((directory / name).is_file() for name in _RUN_FILES)


def find_runs(results: Path) -> list[Path]:
    """The run directories of one study's results folder, by name.

    Raises:
        RecordError: when the folder is missing, is itself a run, holds no run, or holds studies
            instead of runs; the message names what to give.
    """
    results = Path(results)
    if not results.is_dir():
        beside = [p.name for p in results.parent.iterdir()] if results.parent.is_dir() else []
        nearest = difflib.get_close_matches(results.name, beside, n=1)
        hint = f" Did you mean {results.parent / nearest[0]}?" if nearest else ""
        raise RecordError(
            f"{results} is not a folder of results.{hint} `glu-lab sweep` writes one a study."
        )
    if is_run(results):
        raise RecordError(f"{results} is one run; give the folder of its study, {results.parent}.")
    runs = sorted(path for path in results.iterdir() if path.is_dir() and is_run(path))
    if runs:
        return runs
    studies = sorted(
        path
        for path in results.iterdir()
        if path.is_dir() and any(is_run(child) for child in path.iterdir() if child.is_dir())
    )
    if studies:
        raise RecordError(
            f"{results} holds {len(studies)} studies; give one of them: "
            f"{', '.join(str(path) for path in studies)}."
        )
    raise RecordError(f"{results} holds no run. `glu-lab sweep` writes one folder a run there.")


def read_record(directory: Path) -> Record:
    """Reads one run directory.

    Raises:
        RecordError: naming the file, for unreadable JSON, missing keys, an unknown status, or a
            complete run without finite results.
    """
    directory = Path(directory)
    config_file, summary_file = directory / "config.json", directory / "summary.json"
    config = read_json(config_file) if config_file.is_file() else None
    if summary_file.is_file():
        return _from_summary(directory, summary_file, read_json(summary_file), config)
    if config is None:
        raise RecordError(f"{directory} has neither summary.json nor config.json; it is no run.")
    try:
        experiment = decode(Experiment, config)
    except GluLabError as error:
        raise RecordError(f"{config_file} does not describe an experiment: {error}") from error
    ffn = experiment.model.ffn
    return Record(
        directory=directory,
        status=UNFINISHED,
        variant=variant_name(ffn),
        d_ff=ffn.d_ff,
        seed=experiment.seed,
        config=config,
    )


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, by step; an empty list when there is no such file.

    A run that is resumed repeats the steps after its checkpoint: the last line of a kind and step
    counts. A last line that a kill cut short is no line.

    Raises:
        RecordError: naming file and line, for any other line that is no JSON object with ``step``
            and ``kind``.
    """
    path = Path(directory) / "metrics.jsonl"
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error
    lines = text.split("\n")
    cut_short = len(lines) - 1 if lines[-1] else None
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if index == cut_short:
                continue
            raise RecordError(f"{path}:{index + 1} is not JSON: {error}.") from error
        if not isinstance(entry, dict) or not {"step", "kind"} <= entry.keys():
            raise RecordError(
                f"{path}:{index + 1} must be an object with 'step' and 'kind', got {line[:80]!r}."
            )
        latest[(entry["kind"], entry["step"])] = entry
    return sorted(latest.values(), key=lambda entry: entry["step"])


def _from_summary(
    directory: Path, file: Path, summary: Mapping[str, Any], config: Mapping[str, Any] | None
) -> Record:
    missing = [key for key in SUMMARY_KEYS if key not in summary]
    if missing:
        raise RecordError(f"{file} lacks {', '.join(missing)}; the run was not recorded whole.")
    status = summary["status"]
    if status not in SUMMARY_STATUSES:
        raise RecordError(
            f"{file} states status {status!r}; expected one of {', '.join(SUMMARY_STATUSES)}."
        )
    for key in ("d_ff", "seed"):
        if isinstance(summary[key], bool) or not isinstance(summary[key], int):
            raise RecordError(f"{file}: {key} must be an integer, got {summary[key]!r}.")
    if not isinstance(summary["variant"], str):
        raise RecordError(f"{file}: variant must be text, got {summary['variant']!r}.")
    if status == "complete":
        _check_complete(file, summary)
    # A run that diverged may hold NaN where a number is undefined.
    values: dict[str, Any] = {
        key: _finite(summary[key]) for key in ("log_perplexity", *_NUMBERS, *_OPTIONAL)
    }
    values |= {key: summary[key] or "" for key in (*_TEXT, "execution_hash")}
    return Record(
        directory=directory,
        status=status,
        d_ff=summary["d_ff"],
        seed=summary["seed"],
        error=summary["error"],
        config=config,
        **values,
    )


def _check_complete(file: Path, summary: Mapping[str, Any]) -> None:
    for key in ("log_perplexity", *_NUMBERS):
        if not _is_number(summary[key]):
            raise RecordError(
                f"{file} says 'complete', but {key} is {summary[key]!r}; expected a finite number."
            )
    for key in _TEXT:
        if not isinstance(summary[key], str) or not summary[key]:
            raise RecordError(
                f"{file} says 'complete', but {key} is {summary[key]!r}; expected text."
            )
    for key in _OPTIONAL:
        if summary[key] is not None and not _is_number(summary[key]):
            raise RecordError(f"{file}: {key} must be a finite number or null.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _finite(value: Any) -> Any:
    return value if _is_number(value) else None
