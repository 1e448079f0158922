"""``glu-lab conformance`` as users call it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glu_lab.conformance import report
from glu_lab.layouts import LAYOUTS

ROOT = Path(__file__).parents[2]

MODULE = """
import jax.numpy as jnp
from glu_lab.layers import ffn

def fused(params, x, spec, *, numerics, dropout_key=None):
    return ffn.apply(params, x, spec, numerics=numerics, dropout_key=dropout_key)

def no_bfloat16(params, x, spec, *, numerics, dropout_key=None):
    if numerics.compute_dtype == "bfloat16":
        raise NotImplementedError("no kernel")
    return ffn.apply(params, x, spec, numerics=numerics, dropout_key=dropout_key)
"""

LAYOUT = """
[[layout]]
name = "mine"
summary = "both branches in one tensor"
num_branches = 2
function = { variant = "relu2*silu" }

[[layout.tensors]]
name = "w_in"
holds = "wi"
axes = "embed (mlp branch)"
branches = [1, 0]
interleave = 2

[[layout.tensors]]
name = "w_out"
holds = "wo"
axes = "mlp embed"
"""

#: Few cells, all of one shape.
FEW = ("float32", "bfloat16", "many_rows", "normal", "training")


def command(*arguments, folder=ROOT):
    """In a process of its own, as JAX there has devices of its own."""
    return subprocess.run(
        [sys.executable, "-m", "glu_lab.cli.main", "conformance", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_ffn.py").write_text(MODULE)
    (folder / "mine.toml").write_text(LAYOUT)
    return folder


@pytest.mark.slow
def test_a_users_variant_execution_and_layout_are_held_against_the_oracle(own):
    given = ("--variant", "relu2*silu", "--register", "my_ffn:fused", "--rows", "mine.toml")
    done = command("--only", "spec=relu2*silu", "fused", *FEW, "--json", *given, folder=own)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sha256"] == report.content_hash(found)
    assert found["cells"] == found["passed"] == 2
    assert {row["execution"] for row in found["rows"]} == {"fused"}

    done = command("--only", "spec=relu2*silu", "layout=mine", *given, "--json", folder=own)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["layout"], row["status"]) == ("mine", "passed")


@pytest.mark.slow
def test_a_problem_ends_the_command_with_1_and_stands_first(own):
    done = command(
        "--only", "spec=swiglu", "no_bfloat16", *FEW, "--register", "my_ffn:no_bfloat16",
        "--html", "page.html", "--markdown", "page.md", folder=own,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stderr.strip()
    worst = done.stdout[done.stdout.index("worst cells:") :].splitlines()
    assert "raised: swiglu · no_bfloat16 · bfloat16" in worst[1]
    assert worst[1].endswith("NotImplementedError: no kernel")
    assert "passed: swiglu · no_bfloat16 · float32" in worst[2]
    assert "2 cells in" in done.stdout and "1 passed, 1 failed" in done.stdout
    assert "NotImplementedError: no kernel" in (own / "page.html").read_text("utf-8")
    assert "| no_bfloat16 | 2 | 1 | 1 | 0 |" in (own / "page.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "swigl"], "did you mean 'swiglu'?"),
        (["--tier", "quik"], "did you mean 'quick'?"),
        (["--variant", "geglu"], "say which: geglu_erf, geglu_tanh."),
        (["--register", "no_module:apply"], "cannot import 'no_module'"),
        (["--rows", "nowhere.toml"], "cannot read the layouts of nowhere.toml"),
        (["--only", "jit", "hf-llama"], "no cell has both"),
        (["--tiers", "quick"], "did you mean '--tier'?"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_cell(arguments, message, monkeypatch, capsys):
    from glu_lab.cli.main import main
    from glu_lab.conformance import matrix

    monkeypatch.setattr("glu_lab.sharding.targets.use_virtual_devices", lambda count: None)
    monkeypatch.setattr(matrix, "run", lambda *a, **how: pytest.fail("ran"))
    assert main(["conformance", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def quick():
    done = command("--json")
    assert done.returncode == 0, done.stderr + done.stdout[:2000]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_quick_tier_passes_with_every_execution_and_layout(quick):
    assert quick["failed"] == 0 and quick["passed"] > 600
    assert set(quick["not_run"]) <= {"cannot", "not_stored"}
    passed = [row for row in quick["rows"] if row["status"] == "passed"]
    executions = {row.get("execution") for row in passed} - {None}
    assert executions == set(quick["identity"]["executions"])
    assert {"by_rule_4", "by_hand_4", "sequence_parallel_4"} <= executions
    assert {row.get("layout") for row in passed} - {None} == set(LAYOUTS)
    assert quick["left_to_full"] > 0
    assert quick["sha256"] == report.content_hash(quick)


@pytest.mark.slow
def test_what_passes_is_not_so_loose_that_anything_would(quick):
    """The largest error of each number format is a good part of what is allowed there."""
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        shares = [
            float(row["share"])
            for row in quick["rows"]
            if row["kind"] == "execution" and row["dtype"] == dtype and "share" in row
        ]
        assert max(shares) > 0.1, dtype
