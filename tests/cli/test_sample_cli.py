"""``glu-lab sample`` as a user types it."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import DataError
from glu_lab.models import Transformer
from glu_lab.models.sampling import Sampling
from glu_lab.models.uncached import generate
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


def test_json_counts_the_tokens_of_prompt_and_samples(trained_decoder):
    folder, _ = trained_decoder
    tokenizer = TrainedRun(folder).tokenizer
    result = call("sample", folder, "--text", "ba de", "--samples", 2, "--tokens", 5, "--json")
    # The end-of-sequence before the text is read, too.
    assert result.json["prompt_tokens"] == 1 + len(tokenizer.encode("ba de"))
    assert len(result.json["new_tokens"]) == 2
    assert all(1 <= count <= 5 for count in result.json["new_tokens"])
    assert not [name for name in result.json if name.endswith("per_second")]


def test_timing_measures_reading_and_writing(trained_decoder):
    folder, _ = trained_decoder
    ask = ["sample", folder, "--text", "ba de", "--tokens", 6]
    timed = call(*ask, "--json", "--timing").json
    assert timed["prefill_tokens_per_second"] > 0 and timed["decode_tokens_per_second"] > 0
    plain = call(*ask, "--json").json
    assert {name: timed[name] for name in plain} == plain
    shown = call(*ask, "--timing").out
    assert re.search(r"^prefill [\d,]+ tokens/s, decode [\d,]+ tokens/s$", shown, re.MULTILINE)
    assert "tokens/s" not in call(*ask).out


def test_top_k_of_one_and_a_tiny_top_p_are_the_likeliest_tokens(trained_decoder):
    folder, _ = trained_decoder
    draw = ["sample", folder, "--text", "ba", "--tokens", 12, "--json"]
    greedy = call(*draw, "--temperature", 0).json["samples"]
    hot = [*draw, "--temperature", 5]
    assert call(*hot).json["samples"] != greedy
    assert call(*hot, "--top_k", 1).json["samples"] == greedy
    assert call(*hot, "--top_p", 1e-6).json["samples"] == greedy


def test_texts_of_a_seed_are_those_of_the_whole_model_at_every_token(trained_decoder):
    run = TrainedRun(trained_decoder[0])
    prompt = [run.tokenizer.eos_id, *run.tokenizer.encode("document 3: ba")]
    transformer = Transformer(run.experiment.model, run.experiment.numerics)

    def logits(params, filled):
        where = jnp.broadcast_to(jnp.arange(filled.shape[1], dtype=jnp.int32), filled.shape)
        batch = {"tokens": filled, "segments": jnp.ones_like(filled), "positions": where}
        return transformer.apply({"params": params}, batch)

    buffer = np.zeros((3, len(prompt) + 20), np.int32)
    buffer[:, : len(prompt)] = prompt
    filled = generate(
        logits,
        run.params,
        jnp.asarray(buffer),
        jnp.int32(len(prompt)),
        jax.random.key(7),
        Sampling(temperature=0.8).arrays(),
        stop=run.tokenizer.eos_id,
        limit=run.tokenizer.size,
    )
    rows = np.asarray(filled)[:, len(prompt) :]
    want = ["document 3: ba" + run.tokenizer.decode(row) for row in rows]
    assert run.sample("document 3: ba", samples=3, tokens=20, seed=7) == want
    assert len(set(want)) == 3


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
    assert run._fill(text, row) == "a [first words] b [] c [others]."


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
        (["--text", "<extra_id_0>", "--top_k", "0"], "top_k must be a whole number ≥ 1, got 0"),
        (["--text", "<extra_id_0>", "--top_p", "0"], "top_p must be over 0 and at most 1"),
        (["--text", "<extra_id_0>", "--top_p", "1.01"], "top_p must be over 0 and at most 1"),
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
