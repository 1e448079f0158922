"""``glu-lab sample`` as a user types it."""

import re
import shutil

import pytest

from glu_lab.errors import DataError
from glu_lab.training.trained import TrainedRun
from tests.cli.conftest import call

pytestmark = pytest.mark.slow


def test_a_decoder_continues_the_text(trained_decoder):
    folder, _ = trained_decoder
    result = call("sample", folder, "--text", "document 3: ba", "--samples", 2, "--tokens", 8)
    assert result.code == 0, result.err
    assert result.out.count("document 3: ba") == 2


def test_json_names_step_prompt_and_samples(trained_decoder):
    folder, _ = trained_decoder
    result = call("sample", folder, "--text", "ba", "--samples", 3, "--tokens", 5, "--json")
    assert result.json["step"] == 13 and result.json["prompt"] == "ba"
    assert len(result.json["samples"]) == 3
    assert all(text.startswith("ba") for text in result.json["samples"])


def test_seeds_repeat_and_temperature_0_is_the_same_each_time(trained_decoder):
    folder, _ = trained_decoder
    draw = ["sample", folder, "--text", "ba", "--tokens", 12, "--json", "--samples", 2]
    hot = [*draw, "--temperature", 5]
    assert call(*hot).json == call(*hot).json
    assert call(*hot).json["samples"] != call(*hot, "--seed", 1).json["samples"]
    greedy = call(*draw, "--temperature", 0).json["samples"]
    assert greedy[0] == greedy[1]


def test_an_older_checkpoint_can_be_asked_for(trained_decoder):
    folder, _ = trained_decoder
    result = call("sample", folder, "--step", 8, "--tokens", 4, "--json")
    assert result.json["step"] == 8
    missing = call("sample", folder, "--step", 7)
    assert missing.code == 2 and "there are [4, 8, 12, 13]" in missing.err


def test_an_encoder_decoder_fills_the_marks_in_brackets(trained_pair):
    folder, _ = trained_pair
    text = "document 3: <extra_id_0> ba de <extra_id_1>."
    result = call("sample", folder, "--text", text, "--tokens", 12, "--json")
    assert result.code == 0, result.err
    (filled,) = result.json["samples"]
    assert re.fullmatch(r"document 3: \[.*\] ba de \[.*\]\.", filled, re.DOTALL), filled


def test_words_go_to_the_span_of_their_sentinel(trained_pair):
    """Spans in any order, one of them missing, and nothing after the end."""
    run = TrainedRun(trained_pair[0])
    tokenizer = run.tokenizer
    one, two = tokenizer.encode("first words"), tokenizer.encode("others")
    end = tokenizer.eos_id
    row = [tokenizer.sentinel(2), *two, tokenizer.sentinel(0), *one, end, *two]
    text = "a <extra_id_0> b <extra_id_1> c <extra_id_2>."
    import numpy as np

    assert run._fill(text, np.array(row)) == "a [first words] b [] c [others]."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--text", "no marks here"], "nothing to fill"),
        (["--text", "<extra_id_1> first"], "<extra_id_1> is out of order"),
        (["--text", "<extra_id_0> and <extra_id_2>"], "<extra_id_2> is out of order"),
        (["--text", "<extra_id_0> " + "ba " * 400], "over model.max_length"),
        (["--text", "<extra_id_0>", "--tokens", "500"], "over model.max_length"),
        (["--text", "<extra_id_0>", "--tokens", "0"], "must be ≥ 1"),
        (["--text", "<extra_id_0>", "--samples", "0"], "must be ≥ 1"),
        (["--text", "<extra_id_0>", "--temperature", "-1"], "temperature must be ≥ 0"),
        (["--text", "<extra_id_0>", "--temperature", "nan"], "temperature must be ≥ 0"),
    ],
)
def test_a_bad_request_is_told(arguments, said, trained_pair):
    result = call("sample", trained_pair[0], *arguments)
    assert result.code == 2
    assert said in " ".join(result.err.split())


def test_more_marks_than_sentinels_are_refused(trained_pair):
    run = TrainedRun(trained_pair[0])
    text = " ".join(f"<extra_id_{i}>" for i in range(11))
    with pytest.raises(DataError, match="sentinel 10 does not exist"):
        run.sample(text)


def test_what_is_no_run_is_refused(tmp_path, trained_decoder):
    result = call("sample", tmp_path)
    assert result.code == 2 and "config.json is missing" in result.err
    run = tmp_path / "run"
    shutil.copytree(trained_decoder[0], run)
    (run / "config.json").write_text("{")
    result = call("sample", run)
    assert result.code == 2 and "is not JSON" in result.err
    shutil.rmtree(run / "checkpoints")
    shutil.copy(trained_decoder[0] / "config.json", run)
    result = call("sample", run)
    assert result.code == 2 and "its checkpoints are gone" in result.err
    assert not (run / "checkpoints").exists()


def test_sampling_writes_nothing(trained_decoder):
    from tests.training.small import content

    folder, _ = trained_decoder
    before = content(folder)
    call("sample", folder, "--tokens", 3)
    assert content(folder) == before


def test_evaluation_of_a_checkpoint_repeats_the_recorded_numbers(trained_decoder, cli_cache):
    folder, _ = trained_decoder
    import json

    summary = json.loads((folder / "summary.json").read_text())
    measured = TrainedRun(folder).evaluate()
    for name in ("log_perplexity", "log_perplexity_se", "bits_per_byte", "accuracy"):
        assert measured[name] == summary[name]
