"""A corpus, config files and two tiny trained runs for the commands that need them."""

import contextlib
import io
import json

import pytest

from glu_lab.cli.main import main
from tests.training.small import write_corpus

CONFIG = """
from glu_lab.configs import experiment_config
from glu_lab.spec.codec import encode
from tests.training.small import small_experiment, small_model, small_training, text_data


def get_config(kind="decoder"):
    objective = {{"decoder": "causal_lm", "encoder_decoder": "span_corruption"}}[kind]
    experiment = small_experiment(
        text_data({corpus!r}, objective=objective), model=small_model(kind)
    )
    return experiment_config(**encode(experiment))
"""


class Result:
    """What a command printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out.splitlines()[-1])


def call(*arguments):
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def cli_cache(tmp_path_factory):
    """The cache folder of every command, corpora and compiled programs."""
    folder = tmp_path_factory.mktemp("cli-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLU_LAB_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory, cli_cache):
    """A config file; its argument is ``decoder`` or ``encoder_decoder``."""
    folder = tmp_path_factory.mktemp("cli-config")
    corpus = write_corpus(folder / "documents.jsonl")
    path = folder / "tiny.py"
    path.write_text(CONFIG.format(corpus=str(corpus)))
    return path


@pytest.fixture(scope="session")
def trained_decoder(tmp_path_factory, tiny_config):
    folder = tmp_path_factory.mktemp("cli-run") / "decoder"
    result = call("train", f"--config={tiny_config}", "--workdir", folder)
    assert result.code == 0, result.err
    return folder, result


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory, tiny_config):
    folder = tmp_path_factory.mktemp("cli-run") / "pair"
    result = call("train", f"--config={tiny_config}:encoder_decoder", "--workdir", folder, "--json")
    assert result.code == 0, result.err
    return folder, result
