"""``glu-lab collectives`` as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glu_lab.cli import main

ROOT = Path(__file__).parents[2]
T5 = f"--config={ROOT}/configs/t5_tiny_sotu.py:swiglu"

#: One layer a stack, and no data anywhere: shapes alone are asked for.
SMALL = [
    "--config.model.num_layers=1",
    "--config.model.num_encoder_layers=1",
    "--config.data.corpus=text",
    "--config.data.path=/nowhere",
]


def call(*arguments):
    """In a process of its own, which has one device until the command makes more."""
    return subprocess.run(
        [sys.executable, "-m", "glu_lab.cli.main", "collectives", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_training_step_as_json():
    done = call(T5, *SMALL, "--mesh=data=2,model=4", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["worst_ratio"] == 1.0
    rows = [row for row in found["rows"] if row["minimum_bytes"] is not None]
    # A device has 8 of 16 rows: of 64 encoder and 14 decoder tokens, 64 wide, in float32.
    expected = {"encoder": 8 * 64 * 64 * 4, "decoder": 8 * 14 * 64 * 4}
    assert {
        (row["phase"], row["kind"], row["axis"], row["module"].split("/")[1], row["bytes"])
        for row in rows
    } == {
        (phase, "all-reduce", "model", stack, size)
        for phase in ("forward", "backward")
        for stack, size in expected.items()
    }
    assert all(row["ratio"] == 1.0 and row["bytes"] == row["minimum_bytes"] for row in rows)
    assert {row["phase"] for row in found["rows"]} == {"forward", "backward", "update"}
    others = [row for row in found["rows"] if row["minimum_bytes"] is None]
    assert others and all(row["ratio"] is None for row in others)
    assert set(found["axis_bytes"]) == {"data", "model"}


def test_an_evaluation_as_a_table():
    done = call(T5, *SMALL, "--mesh=model=2", "--program=evaluate", "--all")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "worst ratio: 1.00" in done.stdout and "backward" not in done.stdout
    # 32 rows of 64 tokens, 64 wide.
    (line,) = [
        line for line in done.stdout.splitlines() if "...f,fd->...d" in line and "131,072" in line
    ]
    assert line.split()[:5] == ["all-reduce", "model", "131,072", "float32", "1"]
    assert line.count("512 KiB") == 2 and " 1.00 " in line
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((T5, "--mesh=data=2,modle=4"), "did you mean 'model'"),
        ((T5, "--mesh=model=-1"), "states every size"),
        ((T5,), "data=-1 takes the devices that are there"),
        ((T5, "--mesh=model=3"), "together admit model = 1, 2, 4"),
        ((T5, "--mesh=data=3"), "training.batch_size / training.microbatches = 16"),
        ((T5, "--mesh=model=4", "--program=test"), "unknown program 'test'"),
        ((T5, "--mesh=data=4096", "--config.training.batch_size=4096",
          "--config.eval_batch_size=4096"), "4,096 devices; there can be 2,048"),
        (("--config=configs/none.py", "--mesh=model=2"), "no config file 'configs/none.py'"),
        ((T5, "--mesh=model=2", "--config.data.target_length=3"), "cuts targets off"),
        ((T5, "--mesh=model=2", "--jsn"), "did you mean '--json'"),
        (("--mesh=model=2",), "--config"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_before_anything_is_compiled(capsys, monkeypatch, arguments, message):
    import jax

    def compile(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    code = main.main(["collectives", *arguments])
    out, err = capsys.readouterr()
    assert code == 2 and out == ""
    assert message in err and err.startswith("error: ") and "Traceback" not in err


def test_help_has_examples(capsys):
    assert main.main(["collectives", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--mesh=data=2,model=4" in out and "--json" in out
