"""How FFNs start: theory against NumPy draws, and a model's record against the theory."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from glu_lab.conformance.initialization import (
    Line,
    initial_statistics,
    observe,
    of_run,
)
from glu_lab.conformance.initialization_tables import sections
from glu_lab.conformance.propagation import (
    Weights,
    branch_moments,
    expectation,
    held_weights,
    nodes,
    propagate,
)
from glu_lab.data import load
from glu_lab.errors import SpecError
from glu_lab.oracle import ffn as oracle
from glu_lab.spec import Initializer, variant
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import Branch
from glu_lab.spec.variants import VARIANTS
from glu_lab.training.loop import train
from glu_lab.training.programs import program_key, programs
from tests.training.small import small_experiment, small_model, text_data, write_corpus

D, F = 48, 16_000


def clamped(spec):
    first, *others = spec.branches
    first = dataclasses.replace(first, scale=1.3, pre=(-1.5, 2.0), post=(-0.2, 1.4), offset=0.25)
    return spec.replace(branches=(first, *others), output_scale=0.7)


def scaled(spec):
    first, second = spec.branches
    first, second = dataclasses.replace(first, scale=0.5), dataclasses.replace(second, scale=3.0)
    return spec.replace(branches=(first, second))


SPECS = {
    **{name: variant(name, d_model=D, d_ff=F, bias=False) for name in VARIANTS},
    "three branches": variant("silu*tanh*linear", d_model=D, d_ff=F),
    "learned": variant("swish_learned*xielu", d_model=D, d_ff=F),
    "clamped": clamped(variant("swiglu", d_model=D, d_ff=F)),
    "scaled": scaled(variant("swiglu", d_model=D, d_ff=F)),
}


def test_expectations_are_those_of_a_normal_variable():
    u = nodes()
    # Moments 1, 3 and 15 of even order; ½ and √(2/π)/2 for the two sides of a kink.
    for value, want in ((u**2, 1), (u**4, 3), (u**6, 15), (np.maximum(u, 0) ** 2, 0.5)):
        assert expectation(value) == pytest.approx(want, rel=1e-13)
    assert expectation(np.maximum(u, 0)) == pytest.approx(1 / math.sqrt(2 * math.pi), rel=1e-13)
    # A kink inside a panel: E max(u − c, 0) = n(c) − c·Φ(−c).
    c = 0.33
    exact = math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi) - c * math.erfc(c / math.sqrt(2)) / 2
    assert expectation(np.maximum(u - c, 0)) == pytest.approx(exact, rel=1e-3)


def test_known_moments_of_activations():
    """He et al. 2015: ReLU keeps half of the second moment; σ ReLU² has 3/2·σ⁴."""
    for std in (0.3, 1.0, 2.5):
        relu = branch_moments(Branch(activation=Activation("relu")), std)
        assert relu.second == pytest.approx(std**2 / 2, rel=1e-12)
        squared = branch_moments(Branch(activation=Activation("relu2")), std)
        assert squared.second == pytest.approx(1.5 * std**4, rel=1e-12)
        # σ(z) + σ(−z) = 1.
        assert branch_moments(Branch(activation=Activation("sigmoid")), std).first == pytest.approx(
            0.5, rel=1e-12
        )


def draw(spec, rng, sigma, sigma_out):
    params = {}
    for name, shape in oracle.shapes(spec).items():
        if name.startswith("phi_"):
            _, i, *scalar = name.split("_")
            params[name] = spec.branches[int(i)].activation.row.learned["_".join(scalar)]
        else:
            params[name] = rng.normal(size=shape) * (sigma if name == "wi" else sigma_out)
    return params


@pytest.mark.parametrize("name", SPECS)
def test_theory_is_what_drawn_weights_give(name):
    """Rows of two lengths, plain NumPy weights; five standard errors over channels."""
    spec, rng = SPECS[name], np.random.default_rng(3)
    sigma, sigma_out = 1.4 / math.sqrt(D), 0.8 / math.sqrt(F)
    x = rng.normal(size=(2, D))
    x[1] *= 3.0
    theory = propagate(
        spec, Weights((sigma,) * spec.num_branches, sigma_out), np.sum(x**2, axis=-1)
    )
    params = draw(spec, rng, sigma, sigma_out)
    hidden = oracle.hidden(params, oracle.affine(params, x, spec), spec)
    squares = np.mean(np.square(hidden), axis=0)
    se = np.std(squares, ddof=1) / math.sqrt(F)
    assert abs(np.mean(squares) - theory.product) < 5 * se
    assert se < 0.1 * theory.product  # or the comparison would say nothing
    # Outputs: as many down projections as give a standard error of some percent.
    outputs = np.square(hidden @ (rng.normal(size=(F, 500)) * sigma_out)) * spec.output_scale**2
    per_draw = np.mean(outputs, axis=0)
    error = math.hypot(
        np.std(per_draw, ddof=1) / math.sqrt(per_draw.size) / np.mean(per_draw), se / theory.product
    )
    assert abs(np.mean(per_draw) / theory.output - 1) < 5 * error


def test_biases_and_dropout_enter_by_their_mean_squares():
    spec = variant("swiglu", d_model=D, d_ff=F, bias=True, product_bias=True, hidden_dropout=0.25)
    rng = np.random.default_rng(0)
    params = draw(spec, rng, 0.2, 0.01)
    params |= {f"bi_{i}": (1 + i) * rng.normal(size=F) for i in range(2)}
    params |= {"bp": 0.5 * rng.normal(size=F) + 0.3, "bo": rng.normal(size=D)}
    x = rng.normal(size=(1, D))
    weights = held_weights(spec, {name: value[None] for name, value in params.items()}, 0)
    spreads = np.sqrt(np.mean(params["wi"] ** 2, axis=(0, 2)))
    assert weights.branches == pytest.approx(spreads.tolist(), rel=1e-12)
    theory = propagate(spec, weights, np.sum(x**2), dropped=0.25)
    assert theory.arguments[1] == pytest.approx(
        np.sum(x**2) * spreads[1] ** 2 + np.mean(params["bi_1"] ** 2), rel=1e-12
    )
    hidden = oracle.hidden(params, oracle.affine(params, x, spec), spec)
    squares = np.square(hidden[0])
    se = np.std(squares, ddof=1) / math.sqrt(F)
    assert abs(np.mean(squares) - theory.product) < 4 * se < 0.3 * theory.product
    # Over masks and down projections, given a hidden state: 1/(1 − p) of it, and the output's bias.
    dropped = np.where(rng.random((500, F)) > 0.25, hidden / 0.75, 0.0)
    given = np.mean(dropped**2) / np.mean(squares) * theory.product
    expected = F * weights.output**2 * given + np.mean(params["bo"] ** 2)
    assert theory.output == pytest.approx(expected, rel=0.01)


def test_the_standard_error_is_that_of_channels():
    """Two hundred draws of a layer: the stated error is the spread of what is measured."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype(np.float32)
    measured, stated, correlations, errors = [], [], [], []
    run = jax.jit(lambda a: observe("pre_activation", a))
    for _ in range(200):
        wi = rng.normal(size=(16, 2, 40)).astype(np.float32)
        seen = run(np.einsum("td,dnf->tnf", x, wi))
        measured.append(seen["moments"]["mean"][0])
        stated.append(seen["moments"]["se"][0])
        correlations.append(seen["correlation"])
        errors.append(seen["moments"]["correlation_se"])
    # The spread of 200 draws is known to 5 %: 4σ.
    assert np.mean(stated) == pytest.approx(np.std(measured), rel=0.2)
    assert np.mean(errors) == pytest.approx(np.std(correlations), rel=0.2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data = text_data(write_corpus(folder / "documents.jsonl"))
    return load(data, cache_dir=folder / "cache")


def wide(dataset):
    """RMS-normed inputs, some hundred channels, initialisers by fan-in."""
    init = Initializer(scale=1.0, fan="in")
    model = small_model(
        text="swiglu", ffn={"wi_init": init, "wo_init": init}, depth_scaled_output=False
    )
    ffn = model.ffn.replace(d_model=24, d_ff=96, hidden_dropout=0.2)
    embedding = Initializer(scale=0.02, fan="none")
    model = dataclasses.replace(model, d_model=24, ffn=ffn, embedding_init=embedding)
    return small_experiment(dataset.spec, model=model)


@pytest.fixture(scope="module")
def started(dataset):
    """A tiny model, its program, initial state and first batch."""
    experiment = wide(dataset)
    program = programs(program_key(experiment, dataset))
    batch = next(dataset.train_iterator(seed=0, batch_size=experiment.training.batch_size))
    return experiment, program, program.init(program.put_key(0)), program.put_rows(batch)


@pytest.fixture(scope="module")
def record(started):
    return initial_statistics(*started, drawn=True)


def lines_of(record, quantity):
    return [line for line in (Line(**d) for d in record["theory"]) if line.quantity == quantity]


@pytest.mark.slow
def test_a_models_start_is_what_its_initialisers_say(record):
    lines = [Line(**line) for line in record["theory"]]
    assert len(lines) == 2 * (2 + 2 + 1 + 1 + 1)
    for line in lines:
        assert line.deviations is not None and abs(line.deviations) < 4, line
    for line in record["pooled"]:
        assert line["ratio"] == pytest.approx(1, abs=4 * line["standard_error"])
        assert line["standard_error"] < 0.12
    for line in lines_of(record, "pre-activation"):
        # D·σ²·v_x of an RMS-normed row; ε takes the last digits.
        assert line.predicted == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_wrong_initialiser_shows_its_square(started, factor):
    """Weights drawn with another σ than the config states."""
    experiment, program, state, batch = started
    params = jax.tree.map(lambda x: x, state["params"])
    ffn = params["decoder"]["layers"]["ffn"]
    ffn["wi"] = factor * ffn["wi"]
    record = initial_statistics(experiment, program, {**state, "params": params}, batch, drawn=True)
    for line in lines_of(record, "pre-activation"):
        assert line.ratio == pytest.approx(factor**2, abs=4 * (line.standard_error or 0.0))
        assert abs(line.deviations or 0.0) > 5
    # Held against the spreads that the weights have, the same start is as it should be.
    held = initial_statistics(experiment, program, {**state, "params": params}, batch, drawn=False)
    for line in lines_of(held, "pre-activation"):
        assert line.ratio == pytest.approx(1, abs=4 * (line.standard_error or 0.0))


@pytest.mark.slow
def test_the_record_holds_what_a_run_starts_from(started, record):
    experiment, program, state, batch = started
    assert (record["step"], record["loss_scale"], record["finite"]) == (0, None, True)
    assert record["rng"]["words"] == np.asarray(jax.random.key_data(state["rng"])).tolist()
    # A uniform guess costs log V; a model that starts is near it.
    assert record["loss"] == pytest.approx(math.log(experiment.model.vocab_size), rel=0.2)
    assert record["tokens"] == int(np.sum(np.asarray(batch["weights"])))
    wi = np.asarray(state["params"]["decoder"]["layers"]["ffn"]["wi"], np.float64)
    rms = record["rms"]["parameter"]["decoder/layers/ffn/wi"]
    np.testing.assert_allclose(rms, np.sqrt(np.mean(wi**2, axis=(1, 3))), rtol=1e-6)
    assert np.shape(record["rms"]["gradient"]["decoder/layers/ffn/wi"]) == (2, 2)
    whole = program.gradients(state, batch)
    per_branch = np.array(record["rms"]["gradient"]["decoder/layers/ffn/wi"])
    np.testing.assert_allclose(
        np.sqrt(np.mean(per_branch**2, axis=1)), whole["decoder/layers/ffn/wi"], rtol=1e-5
    )
    statistics = record["statistics"]["decoder"]
    assert set(statistics) == {
        "input", "pre_activation", "slopes", "branches", "product", "output",
    }  # fmt: skip
    assert np.shape(statistics["pre_activation"]["quantiles"]) == (2, 2, 5)
    text = " ".join(cell for section in sections(record) for row in section.rows for cell in row)
    assert "decoder 1" in text and "pre-activation" in text and "nan" not in text


@pytest.mark.slow
def test_a_checkpoint_is_held_against_the_weights_that_it_has(dataset, tmp_path, monkeypatch):
    experiment = wide(dataset)
    training = dataclasses.replace(experiment.training, steps=4)
    experiment = dataclasses.replace(experiment, training=training)
    train(experiment, tmp_path / "run", dataset=dataset)
    monkeypatch.setattr("glu_lab.data.load", lambda spec, progress: dataset)
    record = of_run(tmp_path / "run")
    assert (record["step"], record["weights"]) == (4, "held")
    # Four steps at a high rate: the spreads are other ones, the rows hardly know of it.
    for line in lines_of(record, "pre-activation"):
        assert line.ratio == pytest.approx(1, abs=0.5)
    assert record["statistics"]["decoder"]["input"]["rms"][0] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --config=FILE.py or --workdir=RUN"),
        (["--config=a.py", "--workdir=b"], "either --config=FILE.py or --workdir=RUN"),
        (["--workdir=b", "--config.seed=1"], "do not go with --workdir"),
        (["--config=a.py", "--step=3"], "--step names a checkpoint"),
    ],
)
def test_what_names_no_model_or_two_is_refused(arguments, said):
    from glu_lab.cli import initialization
    from glu_lab.cli.main import parse

    args = parse("initialization", initialization, arguments)
    with pytest.raises(SpecError, match=said):
        initialization.run(args)
