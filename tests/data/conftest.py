"""Small corpora, each prepared once a session."""

import json
import os
import random
import subprocess
import sys

import pytest

from glu_lab.data import load
from glu_lab.spec.experiment import Data

SYLLABLES = [a + b for a in "bdglmnrst" for b in ("a", "e", "i", "o", "u", "an", "er")]


def write_corpus(path, *, documents=80, seed=0, longest=120):
    """A .jsonl of documents of very different lengths; returns their texts."""
    draw = random.Random(seed)
    texts = [
        f"document {number}:"
        + "".join(
            " " + "".join(draw.choices(SYLLABLES, k=draw.randint(1, 4)))
            for _ in range(draw.randint(1, longest))
        )
        for number in range(documents)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def small(path, **fields):
    """A Data Spec for a corpus that `write_corpus` wrote."""
    settings = {"vocab_size": 320, "num_sentinels": 10, "input_length": 24, "logical_shards": 4}
    return Data(corpus="text", path=str(path), **{**settings, **fields})


def start_python(code, *arguments):
    """A fresh interpreter that finds the package wherever this one found it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish_python(process):
    """What a process of `start_python` printed, once it has ended well."""
    output, _ = process.communicate()
    assert process.returncode == 0
    return output


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    write_corpus(path)
    return path


@pytest.fixture(scope="session", params=["span_corruption", "causal_lm"])
def dataset(request, corpus_file, cache):
    """The small corpus under both objectives."""
    return load(small(corpus_file, objective=request.param), cache_dir=cache)


@pytest.fixture(scope="session")
def sotu(cache):
    return load(Data(vocab_size=512, input_length=64), cache_dir=cache)
