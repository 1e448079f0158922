"""Config files: every baseline builds, resolves to what is on record, and mistakes are told."""

import json
import os
from pathlib import Path

import pytest

from glu_lab import configs
from glu_lab.budget import ledger
from glu_lab.configs import experiment_config, from_config, load, matched_ffn, to_config
from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layers.params import count
from glu_lab.models import parameters
from glu_lab.spec.codec import decode, encode
from glu_lab.spec.experiment import Experiment

ROOT = Path(configs.__file__).resolve().parents[1]
FILES = sorted((ROOT / "configs").glob("*.py"))
GOLDEN = ROOT / "tests" / "golden" / "configs"
UPDATE = "GLU_LAB_UPDATE_GOLDEN"

#: The eight of Shazeer 2020, and dReLU.
VARIANTS = (
    "relu", "gelu_tanh", "silu", "glu", "bilinear", "reglu", "geglu_tanh", "swiglu", "drelu",
)  # fmt: skip

each_file = pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)


@each_file
def test_a_file_resolves_to_what_is_on_record(file):
    """Set GLU_LAB_UPDATE_GOLDEN=1 to write the record anew after a change that is meant."""
    resolved = json.dumps(encode(load(str(file))), indent=2, ensure_ascii=False) + "\n"
    golden = GOLDEN / f"{file.stem}.json"
    if os.environ.get(UPDATE) == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(resolved, encoding="utf-8")
    assert golden.is_file(), f"{golden} is missing; write it with {UPDATE}=1"
    assert resolved == golden.read_text(encoding="utf-8")


def test_every_record_has_its_file():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in FILES}


@each_file
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_builds(file, variant):
    experiment = load(f"{file}:{variant}")
    assert experiment.name == f"{file.stem}/{variant}"
    assert count(parameters(experiment.model)) > 0
    assert decode(Experiment, encode(experiment)) == experiment


@pytest.mark.parametrize("name", ["t5_tiny_sotu", "lm_tiny_sotu", "t5_base_c4"])
def test_variants_of_an_ablation_have_equal_parameters(name):
    sizes = {
        variant: ledger(load(f"{ROOT}/configs/{name}.py:{variant}").model.ffn).params
        for variant in VARIANTS
    }
    assert len(set(sizes.values())) == 1, sizes


def test_the_paper_s_model_has_the_paper_s_size():
    experiment = load(f"{ROOT}/configs/t5_base_c4.py:geglu_tanh")
    assert count(parameters(experiment.model)) == 222_903_552
    assert experiment.model.ffn.d_ff == 2048
    assert load(f"{ROOT}/configs/t5_base_c4.py:relu").model.ffn.d_ff == 3072


def test_smollm2_has_its_published_size():
    assert count(parameters(load(f"{ROOT}/configs/smollm2_135m.py").model)) == 134_515_008


@each_file
def test_the_docstring_says_how_to_train_it(file):
    text = file.read_text()
    assert f"glu-lab train --config=configs/{file.name}" in text


TINY = str(ROOT / "configs" / "lm_tiny_sotu.py")


def test_flags_change_fields_at_any_depth():
    experiment = load(
        TINY,
        [
            "--config.training.steps=7",
            "--config.training.schedule.peak=1",
            "--config.model.ffn.variant=reglu",
            "--config.model.ffn.hidden_dropout=0.25",
            "--config.execution.scan_layers=false",
            "--config.data.path=some folder/*.txt",
        ],
    )
    assert experiment.training.steps == 7
    assert experiment.training.schedule.peak == 1.0
    same = load(f"{TINY}:reglu", ["--config.model.ffn.hidden_dropout=0.25"])
    assert experiment.model.ffn == same.model.ffn
    assert experiment.execution.scan_layers is False
    assert experiment.data.path == "some folder/*.txt"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--config.training.stepz=7", "did you mean '--config.training.steps'"),
        ("--config.trainin.steps=7", "did you mean '--config.training'"),
        ("--config.training.steps.x=7", "--config.training.steps is a value"),
        ("--config.training=7", "training"),
        ("--config.training.steps=7.5", "steps"),
        ("--config.training.steps=many", "steps"),
        ("--config.training.steps=-3", "steps must be ≥ 0"),
        ("--config.execution.scan_layers=maybe", "scan_layers"),
        ("--config.model.ffn.variant=swigluu", "did you mean 'swiglu'"),
        ("--config.model.ffn.variant=geglu", "geglu_tanh"),
        ("--config.training.schedule.kind=cosin", "did you mean 'cosine'"),
        ("--config.data.objective=span", "span_corruption"),
        ("--config.model.num_layers=0", "num_layers must be ≥ 1"),
        ("--config.model.attention.num_kv_heads=3", "the divisors are"),
    ],
)
def test_a_bad_flag_is_told(flag, said):
    with pytest.raises(SpecError) as caught:
        load(TINY, [flag])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_field_of_a_config_file_is_told_its_neighbour(tmp_path):
    tree = encode(load(TINY))
    tree["training"]["batchsize"] = 8
    with pytest.raises(UnknownNameError, match="did you mean 'training.batch_size'"):
        experiment_config(**tree)


def test_a_config_that_was_built_cannot_grow_keys():
    config = to_config(load(TINY))
    with pytest.raises(AttributeError):
        config.training.stepz = 3
    config.training.steps = 3
    assert from_config(config).training.steps == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no config file"),
        ("x = 1\n", "defines no get_config"),
        ("def get_config():\n    return {}\n", "must return an ml_collections.ConfigDict"),
    ],
)
def test_a_file_that_is_no_config_is_told(text, said, tmp_path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=said):
        load(str(path))


def test_a_bad_argument_of_a_file_is_told():
    with pytest.raises(UnknownNameError, match="did you mean 'swiglu'"):
        load(f"{TINY}:swigluu")


def test_a_variant_without_an_exact_match_is_refused_rather_than_approximated():
    with pytest.raises(SpecError, match="no width with exactly the parameters"):
        matched_ffn("swiglu", d_model=64, baseline_d_ff=385)
