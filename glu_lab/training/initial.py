"""The weights that a run starts from, where it does not draw them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from glu_lab.data.tokenizer_files import load_tokenizer
from glu_lab.errors import SpecError
from glu_lab.pretrained import Pretrained, check_model, open_pretrained
from glu_lab.spec.experiment import Experiment
from glu_lab.training.ready import ReadyModel


def check_initial(experiment: Experiment) -> Pretrained | None:
    """Opens the checkpoint that a run starts from, and holds it against the config.

    Returns:
        The checkpoint; None for a run that draws its weights.

    Raises:
        SpecError: when its content is not what the config names, or it is of another function.
        FileFormatError, LayoutError, UnknownNameError: when it cannot be read.
    """
    wanted = experiment.initial
    if not wanted.path:
        return None
    checkpoint = open_pretrained(Path(wanted.path).expanduser())
    check_model(experiment.model, checkpoint)
    checkpoint.check_dtype(experiment.numerics.parameter_dtype)
    found = checkpoint.sha256
    if not wanted.sha256:
        raise SpecError(
            f"initial.sha256 is not stated; it names what the run starts from, wherever it lies. "
            f"That of {wanted.path} is {found}."
        )
    if found != wanted.sha256:
        raise SpecError(
            f"initial.path={wanted.path!r} has the content {found}; the config names "
            f"{wanted.sha256}."
        )
    return checkpoint


def initial_params(experiment: Experiment) -> Any:
    """The parameters that a run starts from, as NumPy arrays; None for one that draws them.

    Raises:
        As `check_initial`; and LayoutError for weights that would be rounded or are not finite.
    """
    checkpoint = check_initial(experiment)
    if checkpoint is None:
        return None
    return checkpoint.params(experiment.numerics.parameter_dtype)


def starting_point(experiment: Experiment) -> ReadyModel:
    """The weights that a config's runs start from, ready to be used before any step.

    Raises:
        SpecError: for a config that draws its weights or trains its tokenizer; as `check_initial`.
        As `initial_params`; DataError for a tokenizer that cannot be read.
    """
    wanted, data = experiment.initial, experiment.data
    if not wanted.path:
        raise SpecError(
            "the config draws its weights (initial.path is empty); there is nothing to use before "
            "it is trained. Name a run's folder instead."
        )
    if data.tokenizer == "train":
        raise SpecError(
            f"the weights of {wanted.path} belong to a tokenizer, and data.tokenizer='train' makes "
            "another one; name theirs."
        )
    sentinels = data.num_sentinels if data.objective == "span_corruption" else 0
    tokenizer = load_tokenizer(data.tokenizer, data.vocab_size, sentinels)
    params = jax.tree.map(jnp.asarray, initial_params(experiment))
    return ReadyModel(
        wanted.path,
        experiment,
        tokenizer,
        params,
        step=0,
        fingerprint=None,
        begins_with_eos=False,
    )
