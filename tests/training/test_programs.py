"""Runs of one shape share their compilations; execution changes time and memory, never the run."""

import dataclasses
import logging

import jax
import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.layers.params import flatten
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Schedule
from glu_lab.spec.sharding import Rules
from glu_lab.training.loop import train
from glu_lab.training.programs import Programs, dropout_key, program_key, programs
from tests.training.small import retrained


@pytest.fixture
def compilations():
    """Messages of JAX, one for each program that it compiles while the test runs."""
    messages = []

    class Collect(logging.Handler):
        def emit(self, record):
            if "Finished XLA compilation" in record.getMessage():
                messages.append(record.getMessage())

    handler, logger = Collect(), logging.getLogger("jax._src.dispatch")
    before = getattr(jax.config, "jax_log_compiles")  # noqa: B009 - declared at run time
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)
    yield messages
    jax.config.update("jax_log_compiles", before)
    logger.removeHandler(handler)
    logger.propagate = propagate


def test_seeds_rates_and_lengths_do_not_compile_anew(
    finished, experiment, dataset, tmp_path, compilations
):
    other = retrained(
        dataclasses.replace(experiment, seed=5, name="other"),
        steps=3,
        schedule=Schedule(kind="constant", peak=1e-3, warmup_steps=0),
    )
    assert programs(program_key(other, dataset)) is programs(program_key(experiment, dataset))
    train(other, tmp_path / "run", dataset=dataset)
    assert compilations == []


def test_the_counter_of_compilations_counts(compilations):
    jax.jit(lambda x: x * 3 + 1)(np.float32(2)).block_until_ready()
    assert len(compilations) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda e: retrained(e, z_loss=0.1),
        lambda e: retrained(e, microbatches=2),
        lambda e: retrained(e, batch_size=8),
        lambda e: dataclasses.replace(e, execution=Execution(remat="dots")),
        lambda e: dataclasses.replace(e, eval_batch_size=8),
    ],
)
def test_what_changes_a_program_is_in_its_key(change, experiment, dataset):
    assert program_key(change(experiment), dataset) != program_key(experiment, dataset)


def test_dropout_differs_between_steps_microbatches_and_seeds(experiment, dataset):
    keys = {
        jax.random.key_data(dropout_key(jax.random.key(seed), step, part)).tobytes()
        for seed in (0, 1)
        for step in (0, 1, 2)
        for part in (0, 1)
    }
    assert len(keys) == 12


def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_written(
    experiment, dataset, tmp_path
):
    wrong = dataclasses.replace(experiment, execution=Execution(mesh="data=3"))
    with pytest.raises(SpecError, match="needs 3 devices"):
        train(wrong, tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution",
    [
        Execution(remat="block"),
        Execution(remat="dots"),
        Execution(scan_layers=False),
        Execution(scan_layers=False, remat="block"),
    ],
    ids=str,
)
def test_remat_and_unrolling_give_the_same_training_with_dropout(execution, experiment, dataset):
    """Five steps with dropout: a mask drawn anew in the backward pass would show at once."""

    def losses(how):
        program = Programs(program_key(dataclasses.replace(experiment, execution=how), dataset))
        state = program.init(program.put_key(0))
        batches = iter(dataset.train_iterator(seed=0, batch_size=4))
        out = []
        for _ in range(5):
            batch = program.put_batch(next(batches))
            state, metrics = program.train(state, batch, np.float32(0.01))
            out.append((float(metrics["sums"]["nats"]), float(metrics["gradient_norm"])))
        return np.array(out), flatten(state["params"])

    one, params = losses(Execution())
    two, others = losses(execution)
    # float32 sums in another order, through five steps of Adam.
    np.testing.assert_allclose(two, one, rtol=2e-4)
    for path, x in params.items():
        np.testing.assert_allclose(others[path], x, rtol=1e-2, atol=1e-3, err_msg=path)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (Rules(seq=("model",), mlp=(), heads=(), kv=(), vocab=()), "attention reads all positions"),
        (Rules(branch=("model",), mlp=()), "factors of a gated FFN's product"),
        (Rules(layers=("data",), batch=("fsdp",)), "one after another"),
        (Rules(kv=()), "need the same rule"),
    ],
)
def test_rules_that_no_program_follows_are_refused_before_anything_is_written(
    experiment, dataset, tmp_path, rules, said
):
    wrong = dataclasses.replace(experiment, execution=Execution(rules=rules))
    with pytest.raises(SpecError, match=said):
        train(wrong, tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()
