"""What names a run, and what only says how it was run."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.variants import variant_name

#: Bumped when the meaning of a field changes, so that old names are not reused.
IDENTITY_VERSION = 1

_NOT_IDENTITY = ("name", "execution", "recording")
_PLACES = ("path", "tokenizer")


def canonical_json(value: Any) -> str:
    """JSON with one spelling for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def digest(value: Any) -> str:
    """sha256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def identity(experiment: Experiment, data_fingerprint: str) -> dict[str, Any]:
    """Everything that changes a run's result, as a mapping.

    Files are named by content: `data_fingerprint` stands for corpus and tokenizer, so the same text
    at another path is the same run.

    Args:
        experiment: the run.
        data_fingerprint: content hash of corpus, split and tokenizer, from `glu_lab.data`.
    """
    fields = {k: v for k, v in encode(experiment).items() if k not in _NOT_IDENTITY}
    fields["data"] = {k: v for k, v in fields["data"].items() if k not in _PLACES}
    # A run that draws its weights is named as runs were before they could start from others.
    initial = fields.pop("initial")
    if initial["sha256"]:
        fields["initial"] = {"sha256": initial["sha256"]}
    return {"version": IDENTITY_VERSION, "data_fingerprint": data_fingerprint, **fields}


def identity_hash(experiment: Experiment, data_fingerprint: str) -> str:
    """The hash that names a run."""
    return digest(identity(experiment, data_fingerprint))


def run_id(experiment: Experiment, data_fingerprint: str) -> str:
    """Directory name of a run: readable first, unique at the end."""
    text = variant_name(experiment.model.ffn)
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in text.replace("*", "-x-"))
    short = identity_hash(experiment, data_fingerprint)[:10]
    return f"{safe}-f{experiment.model.ffn.d_ff}-s{experiment.seed}-{short}"


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")
    else:
        yield path, value


def difference(old: Any, new: Any) -> list[str]:
    """One line for each leaf in which two identities differ."""
    old_leaves, new_leaves = dict(_walk(old, "")), dict(_walk(new, ""))
    missing = object()
    lines = []
    for path in sorted({*old_leaves, *new_leaves}):
        before, after = old_leaves.get(path, missing), new_leaves.get(path, missing)
        if before != after:
            shown = ["(absent)" if v is missing else repr(v) for v in (before, after)]
            lines.append(f"{path}: {shown[0]} → {shown[1]}")
    return lines
