"""The command line as a user meets it: ``glu-lab budget`` and the entry point around it."""

import errno
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from types import ModuleType

import pytest

import glu_lab.cli
from glu_lab import __version__
from glu_lab.cli.main import COMMANDS, main, parse
from glu_lab.errors import SpecError

MATCH = (
    "budget --d_model 4096 --d_ff 16384 --baseline relu --variant swiglu --match params "
    "--round_to 256"
).split()


def report(capsys, *arguments: str) -> dict:
    """Runs with --json and returns the one object printed."""
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def refusal(capsys, *arguments: str) -> str:
    """Runs what must be refused; returns the message."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_matching_prints_one_json_object(capsys):
    found = report(capsys, *MATCH)
    assert found.items() >= {
        "variant": "swiglu",
        "baseline": "relu",
        "d_ff": 11008,
        "continuous_d_ff": 10922.666666666666,
        "continuous_d_ff_exact": "32768/3",
        "params": 135266304,
        "baseline_params": 134217728,
        "param_delta": 1048576,
        "macs_per_token": 135266304,
        "baseline_macs_per_token": 134217728,
        "mac_delta": 1048576,
        "multiplier": "1",
    }.items()  # fmt: skip


def test_a_stated_width_is_counted_as_stated(capsys):
    alone = report(capsys, *"budget --d_model 4096 --d_ff 11008 --variant swiglu".split())
    assert (alone["d_ff"], alone["params"]) == (11008, 135266304)
    assert alone["baseline"] is None
    beside = report(
        capsys,
        *"budget --d_model 4096 --d_ff 16384 --baseline relu --variant swiglu".split(),
        "--variant_d_ff",
        "14336",
    )
    assert (beside["d_ff"], beside["param_delta"]) == (14336, 41943040)
    assert beside["continuous_d_ff"] is None


def test_the_keys_are_the_same_whatever_is_asked_and_null_where_it_is_not(capsys):
    stated = "budget --d_model 8 --d_ff 12 --variant swiglu".split()
    asked = {
        "everything": report(capsys, *MATCH, "--rows", "4"),
        "match": report(capsys, *MATCH),
        "baseline": report(capsys, *stated, "--baseline", "relu", "--variant_d_ff", "9"),
        "rows": report(capsys, *stated, "--rows", "4"),
        "nothing": report(capsys, *stated),
    }
    keys = list(asked["everything"])
    assert all(list(found) == keys for found in asked.values())
    assert None not in asked["everything"].values()
    null = {name: {k for k, v in found.items() if v is None} for name, found in asked.items()}
    assert null["nothing"] == null["rows"] | null["baseline"]
    assert {"baseline", "param_delta", "match", "derivation"} <= null["rows"]
    assert {"rows", "dtype", "tensors", "baseline_tensors", "match"} <= null["baseline"]


def test_rows_list_the_tensors_of_both(capsys):
    found = report(capsys, *MATCH, "--rows", "8192")
    assert (found["rows"], found["dtype"]) == (8192, "bfloat16")
    assert found["intermediate_bytes"] == 688 * 2**20
    assert found["baseline_intermediate_bytes"] == 512 * 2**20
    assert found["tensors"][0]["bytes"] == 64 * 2**20
    float32 = report(capsys, *MATCH, "--rows", "8192", "--dtype", "float32")
    assert float32["saved_bytes"] == 2 * found["saved_bytes"]


def test_biases_are_chosen_on_each_side(capsys):
    both = report(capsys, *MATCH, "--bias", "--baseline_bias")
    assert both["baseline_params"] == 134217728 + 16384 + 4096
    assert [p["name"] for p in both["parameters"]] == [
        "wi[:,0]", "wi[:,1]", "bi_0", "bi_1", "wo", "bo",
    ]  # fmt: skip
    one = report(capsys, *MATCH, "--baseline_bias")
    assert one["baseline_params"] == both["baseline_params"]
    assert "bo" not in [p["name"] for p in one["parameters"]]


def test_the_readable_form_shows_the_derivation_and_the_tensors(capsys):
    assert main([*MATCH, "--rows", "8192"]) == 0
    text = capsys.readouterr().out
    for part in ("135,266,304", "+1,048,576", "32768/3 ≈ 10,922.67", "688 MiB", "∂wo", "wi[:,1]"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*MATCH, "--variant_d_ff", "11008"], "a stated width is never changed"),
        ("budget --d_model 8 --d_ff 8 --variant relu --match params".split(), "--baseline relu"),
        ("budget --d_model 8 --d_ff 8 --variant relu --baseline swiglu".split(), "--match params"),
        ("budget --d_model 8 --d_ff 8 --variant relu --round_to 8".split(), "add --match"),
        ("budget --d_model 8 --d_ff 8 --variant relu --dtype float32".split(), "add --rows"),
        ([*MATCH[:-3], "wallclock"], "measured"),
        ([*MATCH, "--multiplier", "zero"], "got 'zero'"),
        ([*MATCH, "--rounding", "upwards"], "unknown rounding 'upwards'"),
        ("budget --d_model 8 --d_ff 8 --variant geglu".split(), "geglu_erf, geglu_tanh"),
        ("budget --d_model 8 --d_ff 8 --variant swigly".split(), "did you mean 'swiglu'"),
        ("budget --d_model 0 --d_ff 8 --variant relu".split(), "got '0'"),
        ("budget --d_model 4.5 --d_ff 8 --variant relu".split(), "'4.5'"),
        ("budget --d-model 8 --d_ff 8 --variant relu".split(), "did you mean '--d_model'"),
        ("budget --d_model 8 --d_ff 8 --variant relu --config.seed=1".split(), "--config.seed"),
        ("budget --d_model 8 --variant relu".split(), "required: --d_ff"),
        ("budget --d_model 8 --d_ff 8 --variant relu 7".split(), "unrecognized arguments: 7"),
        (["bugdet"], "did you mean 'budget'"),
    ],
)
def test_refusals_say_what_to_do(capsys, arguments, message):
    assert message in refusal(capsys, *arguments)


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"glu-lab {__version__}\n"
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(name in usage for name in (*COMMANDS, "usage:"))
    assert main(["budget", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_every_subcommand_is_listed_with_its_own_help():
    found = {}
    for info in pkgutil.iter_modules(glu_lab.cli.__path__):
        module = importlib.import_module(f"glu_lab.cli.{info.name}")
        if hasattr(module, "HELP"):
            found[info.name.replace("_", "-")] = module.HELP
            assert module.EPILOG.startswith("examples:"), info.name
            assert callable(module.add_arguments)
            assert callable(module.run)
    assert found == COMMANDS


@pytest.fixture
def failing(monkeypatch):
    """A subcommand that raises what it is given."""
    module = ModuleType("glu_lab.cli.fake")
    module.HELP, module.EPILOG = "fake", ""  # pyright: ignore
    module.add_arguments = lambda parser: None  # pyright: ignore
    monkeypatch.setitem(sys.modules, "glu_lab.cli.fake", module)
    monkeypatch.setitem(COMMANDS, "fake", "fake")

    def fails_with(error):
        def run(args):
            raise error

        module.run = run  # pyright: ignore

    return fails_with


def test_a_full_disk_or_memory_is_one_line_and_a_fault_of_ours_a_traceback(failing, capsys):
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), MemoryError("3 TiB")):
        failing(error)
        refusal(capsys, "fake")
    failing(RuntimeError("a fault in the program"))
    with pytest.raises(RuntimeError, match="a fault"):
        main(["fake"])


def test_debug_prints_what_led_to_an_error_before_its_line(failing, capsys):
    error = SpecError("plain words")
    error.__cause__ = KeyError("deep inside")
    for raised, said in ((error, "plain words"), (MemoryError("deep inside"), "out of memory")):
        failing(raised)
        assert main(["fake", "--debug"]) == 2
        shown = capsys.readouterr().err
        assert "Traceback" in shown and "deep inside" in shown
        assert shown.splitlines()[-1].startswith(f"error: {said}")


def test_config_overrides_pass_through_where_a_module_takes_them():
    module = ModuleType("fake")
    module.HELP, module.EPILOG, module.PASS_THROUGH = "fake", "", True  # pyright: ignore

    def add_arguments(parser):
        parser.add_argument("path")
        parser.add_argument("--steps", type=int)

    module.add_arguments = add_arguments  # pyright: ignore
    arguments = "--config.seed 3 t5.py --config.model.d_ff=-8 --steps 5 --config.x -1".split()
    args = parse("fake", module, arguments)
    assert (args.path, args.steps) == ("t5.py", 5)
    assert args.rest == ["--config.seed=3", "--config.model.d_ff=-8", "--config.x=-1"]
    with pytest.raises(SpecError, match="--config.seed needs a value"):
        parse("fake", module, ["t5.py", "--config.seed"])


def test_budget_imports_nothing_heavy_and_answers_in_under_a_second():
    script = (
        "import sys; from glu_lab.cli.main import main; code = main(sys.argv[1:])\n"
        "heavy = {'jax', 'numpy', 'flax', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    times = []
    for extra in ([], ["--json"]):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script, *MATCH, *extra], capture_output=True, text=True
        )
        times.append(time.perf_counter() - start)
        assert (done.returncode, done.stderr) == (0, "")
    assert min(times) < 1.0


def test_a_closed_pipe_prints_no_complaint():
    command = [sys.executable, "-m", "glu_lab.cli.main", *MATCH, "--rows", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
