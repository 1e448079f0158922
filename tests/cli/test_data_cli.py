"""``glu-lab data`` as a user types it."""

from tests.cli.conftest import call


def test_counts_and_a_first_row_are_shown(tiny_config):
    result = call("data", f"--config={tiny_config}")
    assert result.code == 0, result.err
    assert "train" in result.out and "documents" in result.out and "validation" in result.out
    assert "first row of tokens:" in result.out and "first row of targets:" in result.out


def test_span_rows_show_their_marks(tiny_config):
    result = call("data", f"--config={tiny_config}:encoder_decoder")
    assert "first row of encoder_tokens:" in result.out
    assert "<extra_id_0>" in result.out


def test_a_long_row_is_cut_with_its_length_unless_it_is_asked_for_whole(tiny_config):
    # Two rows of a decoder, tokens and targets.
    command = ["data", f"--config={tiny_config}", "--config.data.input_length=900"]
    command += ["--config.model.max_length=900"]
    rows = call(*command, "--json").json["first_row"]
    assert set(rows) == {"tokens", "targets"}
    text = rows["tokens"]
    assert len(text) > 1000
    cut, whole = call(*command), call(*command, "--full")
    assert cut.code == whole.code == 0, cut.err
    assert f"… and {len(text) - 800:,} of {len(text):,} characters more; --full" in cut.out
    assert "characters more" not in whole.out

    def words(shown):
        return "".join(shown.split())

    assert words(text) in words(whole.out)
    assert words(text[:800]) in words(cut.out) and words(text[:900]) not in words(cut.out)


def test_json_has_counts_and_fingerprint_and_stdout_nothing_else(tiny_config):
    result = call("data", f"--config={tiny_config}", "--json")
    assert result.out.count("\n") == 1
    counts = result.json
    assert counts["train_documents"] + counts["validation_documents"] == 40
    assert len(counts["fingerprint"]) == 64
    assert counts["train_tokens"] > counts["validation_tokens"] > 0


def test_a_missing_file_is_told(tiny_config, tmp_path):
    result = call("data", f"--config={tiny_config}", f"--config.data.path={tmp_path}/none.txt")
    assert result.code == 2
    assert "none.txt" in result.err
