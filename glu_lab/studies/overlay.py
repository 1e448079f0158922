"""A strict overlay of dotted keys on a resolved experiment.

The experiment is encoded, the named entries are replaced, and the result is decoded and validated
again. A key that the config has not is an error with the nearest one; text is never evaluated.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.codec import decode, encode, encode_variant
from glu_lab.spec.experiment import Experiment

_FFN = "model.ffn"


def apply_overlay(experiment: Experiment, overlay: Mapping[str, Any]) -> Experiment:
    """A copy of an experiment with some config entries replaced.

    ``model.ffn.variant`` replaces the branches; their biases stay the experiment's own unless
    ``model.ffn.bias`` is set, which also sets the output bias where that is not set by itself.
    ``model.d_model`` is passed on to the FFN, as in a config that leaves ``model.ffn.d_model`` out.

    Args:
        experiment: the base.
        overlay: dotted key → JSON-like value.

    Returns:
        The validated experiment.

    Raises:
        UnknownNameError: for a key that the config has not, with the nearest one.
        SpecError: for keys that contain one another, or a value that does not fit.
    """
    config = encode(experiment)
    _refuse_overlap(overlay)
    if f"{_FFN}.variant" in overlay or f"{_FFN}.bias" in overlay:
        config["model"]["ffn"] = _short_form(experiment, overlay)
    if "model.d_model" in overlay and f"{_FFN}.d_model" not in overlay:
        del config["model"]["ffn"]["d_model"]
    known = list(_paths(config))
    for key, value in overlay.items():
        if key not in known:
            raise _unknown_key(str(key), [*known, f"{_FFN}.variant", f"{_FFN}.bias"])
        *parents, last = key.split(".")
        target = config
        for parent in parents:
            target = target[parent]
        target[last] = encode(value)
    return decode(Experiment, config)


def parse_assignment(text: str) -> tuple[str, Any]:
    """Reads ``key=value`` from a command line.

    The value is read as JSON where it is JSON (``3``, ``0.1``, ``true``, ``[1, 2]``), and taken as
    text otherwise; the config's own types then decide whether it fits.

    Raises:
        SpecError: for text without ``=``.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise SpecError(f"{text!r} is not key=value; write for example training.steps=100.")
    try:
        parsed = json.loads(value, parse_constant=_no_constant)
    except ValueError:
        parsed = value
    return key.strip(), parsed


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _unknown_key(key: str, known: Sequence[str]) -> UnknownNameError:
    """Names the few keys that were likely meant; a config has over a hundred."""
    near = difflib.get_close_matches(key, known, n=4, cutoff=0.6)
    group = key
    while not near:
        group, dot, _ = group.rpartition(".")
        prefix = f"{group}." if dot else ""
        near = [k for k in known if k.startswith(prefix) and "." not in k[len(prefix) :]]
    return UnknownNameError("config key", key, near)


def _refuse_overlap(overlay: Mapping[str, Any]) -> None:
    for key in overlay:
        for other in overlay:
            if other.startswith(f"{key}."):
                raise SpecError(f"{key!r} and {other!r} are set together; set one of them.")


def _short_form(experiment: Experiment, overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The FFN as a config writes it: a variant's name and a bias flag, no branches."""
    spec = experiment.model.ffn
    if f"{_FFN}.branches" in overlay:
        raise SpecError(
            f"{_FFN}.branches is set together with {_FFN}.variant or {_FFN}.bias, which say it "
            "too; set one of them."
        )
    short = {key: value for key, value in encode(spec).items() if key != "branches"}
    if f"{_FFN}.variant" not in overlay:
        short = encode_variant(spec)
    elif f"{_FFN}.bias" in overlay:
        short["bias"] = None
    else:
        biases = {branch.bias for branch in spec.branches}
        if len(biases) != 1:
            raise SpecError(
                f"the base config has a bias on some branches only, so {_FFN}.variant cannot tell "
                f"which biases the new variant has; set {_FFN}.bias too."
            )
        short["bias"] = biases.pop()
    # Replaced by the overlay's value, or already there; the entry makes the key known.
    short.setdefault("variant", None)
    if f"{_FFN}.bias" in overlay and f"{_FFN}.output_bias" not in overlay:
        del short["output_bias"]
    return short


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path
            yield from _paths(item, path)
