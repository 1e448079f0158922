"""Config files in, validated Experiments out.

A config file is the record of one baseline: it defines ``get_config(arg)`` and returns
`experiment_config(...)`, an `ml_collections.ConfigDict` that holds every field of an Experiment, so
that each can be set from the command line: ``--config.training.steps=200``.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from glu_lab.budget import match_width
from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec import variant
from glu_lab.spec.codec import decode, encode, encode_variant
from glu_lab.spec.experiment import Experiment


def experiment_config(**fields: Any) -> ConfigDict:
    """A complete, locked config from the fields that differ from the defaults.

    Args:
        **fields: fields of `Experiment`; nested mappings for its parts. ``model.ffn`` may say
            ``variant`` instead of ``branches``.

    Raises:
        SpecError: for unknown keys, wrong types, and Specs that describe nothing.
    """
    return to_config(decode(Experiment, fields))


def to_config(experiment: Experiment) -> ConfigDict:
    """An Experiment as a ConfigDict, its FFN in the short form where a name says its branches."""
    tree = encode(experiment)
    try:
        tree["model"]["ffn"] = encode_variant(experiment.model.ffn)
    except SpecError:
        pass  # The long form says what no name does.
    return ConfigDict(tree, convert_dict=True).lock()


def from_config(config: ConfigDict) -> Experiment:
    """The Experiment that a config describes.

    Raises:
        SpecError: as `glu_lab.spec.codec.decode`.
    """
    return decode(Experiment, config.to_dict())


def load(path_and_argument: str, overrides: Sequence[str] = ()) -> Experiment:
    """Loads ``configs/x.py:argument`` and applies flags.

    Args:
        path_and_argument: a Python file with ``get_config``; what follows the colon is its
            argument.
        overrides: flags as on the command line, ``"--config.training.steps=200"``.

    Raises:
        SpecError: for a missing file, an unknown key, or a value of the wrong type.
    """
    arguments = ["glu-lab", *overrides]
    config = _read(path_and_argument)
    _check_keys(config, overrides)
    values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=arguments)
        values(arguments)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        text = " ".join(str(error.args[0] if error.args else error).replace("\\n", " ").split())
        raise SpecError(f"{path_and_argument}: {text}") from error
    return from_config(config)


def _check_keys(config: ConfigDict, overrides: Sequence[str]) -> None:
    """Refuses flags of fields that there are none of; absl would name only the missing part."""
    for override in overrides:
        path = override.split("=", 1)[0].removeprefix("--config.")
        node: Any = config
        for depth, key in enumerate(names := path.split(".")):
            above = ".".join(["--config", *names[:depth]])
            if not isinstance(node, ConfigDict):
                raise SpecError(f"{override}: {above} is a value and has no field {key!r}.")
            known = list(node)
            if key not in known:
                raise UnknownNameError(
                    "config key", f"{above}.{key}", [f"{above}.{name}" for name in known]
                )
            node = node[key]


def _read(path_and_argument: str) -> ConfigDict:
    """Runs a config file's ``get_config``."""
    name, colon, argument = path_and_argument.partition(":")
    path = Path(name)
    if not path.is_file():
        known = sorted(str(p) for p in Path("configs").glob("*.py"))
        raise SpecError(
            f"no config file {name!r} (looked from {Path.cwd()}); "
            f"config files here: {', '.join(known) or 'none'}."
        )
    spec = importlib.util.spec_from_file_location(f"glu_lab_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{name} is no Python file; a config file ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError, NameError, AttributeError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise SpecError(f"{name}{where}: {type(error).__name__}: {error}") from error
    if not hasattr(module, "get_config"):
        raise SpecError(f"{name} defines no get_config().")
    config = module.get_config(argument) if colon else module.get_config()
    if not isinstance(config, ConfigDict):
        raise SpecError(f"get_config() of {name} must return an ml_collections.ConfigDict.")
    return config


def matched_ffn(
    text: str, *, d_model: int, baseline: str = "relu", baseline_d_ff: int, **fields: Any
) -> dict[str, Any]:
    """The FFN part of a config: a variant at the baseline's parameter count.

    Args:
        text: the variant.
        d_model: D.
        baseline, baseline_d_ff: the FFN whose parameters are matched, both without biases.
        **fields: further fields of the FFN.

    Returns:
        ``{"variant": …, "d_ff": …, …}``.

    Raises:
        SpecError: when no width matches exactly; state one with ``--config.model.ffn.d_ff``.
    """
    match = match_width(
        text, variant(baseline, d_model=d_model, d_ff=baseline_d_ff), match="params"
    )
    learned = sum(len(branch.activation.row.learned) for branch in match.spec.branches)
    if match.param_delta > learned:
        raise SpecError(
            f"{text} has no width with exactly the parameters of {baseline} at {baseline_d_ff}: "
            f"it would be {match.continuous}, and {match.d_ff} has {match.param_delta:+,}. Write "
            f"ffn=dict(variant={text!r}, d_ff=…) into a config of your own."
        )
    return {"variant": text, "d_ff": match.d_ff, **fields}
