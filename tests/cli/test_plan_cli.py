"""``glu-lab plan`` as a user calls it."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from glu_lab.configs import load
from glu_lab.training import plan as plan_module
from tests.cli.conftest import call

ROOT = Path(__file__).parents[2]
T5 = f"--config={ROOT}/configs/t5_base_c4.py:swiglu"

CONFIG = """
from glu_lab.configs import experiment_config
from glu_lab.spec.codec import encode
from tests.sharding.plan_models import experiment


def get_config(kind="decoder"):
    return experiment_config(**encode(experiment(kind)))
"""

KEYS = """
name target compiler mesh compiled_mesh devices batch_size microbatches remat compute_dtype
total_params params_bytes optimizer_bytes gradient_bytes temp_bytes argument_bytes output_bytes
alias_bytes peak_bytes flops_per_step flops_left_to_compiler flops_in_loops_of_unknown_length
operations_not_counted model_flops_per_step useful_fraction collective_bytes memory_limit_bytes
fits largest_part refusal module_bytes lower_seconds compile_seconds
""".split()

#: Known only where the step was compiled.
COMPILED = """
compiler compiled_mesh temp_bytes argument_bytes output_bytes alias_bytes peak_bytes
collective_bytes compile_seconds
""".split()


@pytest.fixture(scope="module", autouse=True)
def started():
    """JAX has its one device: no command of these tests gives this process more."""
    assert jax.device_count() == 1


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "small.py"
    path.write_text(CONFIG)
    return f"--config={path}"


@pytest.fixture(scope="module")
def planned(config):
    """A plan for the one device of this process."""
    return plan_module.plan(load(config.removeprefix("--config="), ["--config.execution.mesh="]))


@pytest.fixture
def given(monkeypatch):
    """Makes the command print a plan that is there already."""
    return lambda made: monkeypatch.setattr(plan_module, "plan", lambda *_, **__: made)


def test_json_has_every_key_and_null_where_nothing_was_compiled(config, planned, given):
    lowered = call("plan", config, "--mesh=data=4,model=2", "--target=cuda", "--json")
    assert lowered.code == 0, lowered.err
    found = json.loads(lowered.out)
    assert list(found) == KEYS
    assert {key for key, value in found.items() if value is None} == {
        *COMPILED,
        "memory_limit_bytes",
        "fits",
        "refusal",
    }
    assert found["devices"] == 8 and found["mesh"] == {"data": 4, "fsdp": 1, "model": 2}
    assert found["module_bytes"] > 1000

    given(planned)
    compiled = call("plan", config, "--mesh=data=1", "--json", "--memory_gib=0.001")
    assert compiled.code == 0, compiled.err
    found = json.loads(compiled.out)
    assert list(found) == KEYS
    assert all(found[key] is not None for key in KEYS if key != "refusal")
    assert found["fits"] is False and found["memory_limit_bytes"] == int(0.001 * 2**30)
    assert found["collective_bytes"] == {"data": 0, "fsdp": 0, "model": 0}
    assert found["peak_bytes"] == (
        found["argument_bytes"] + found["temp_bytes"] + found["output_bytes"] - found["alias_bytes"]
    )


def test_the_table_says_where_each_number_comes_from(config, planned, given, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    given(planned)
    out = call("plan", config, "--mesh=data=1", "--memory_gib=16").out
    drawn = [line for line in out.splitlines() if line[:1] in "│┃┏┡├└"]
    assert drawn and max(map(len, drawn)) <= 100 and "…" not in out
    for text in (
        "exact, from the layouts",
        "XLA for CPU, jaxlib",
        "the CPU compiler's, an estimate",
        "remat none",
        "100.0 %",
        "Fits: ",
        "of 16 GiB",
        "the largest part is temporaries",
    ):
        assert text in out, text


def test_what_does_not_fit_says_what_to_change(config, planned, given):
    given(planned)
    out = call("plan", config, "--mesh=data=1", "--memory_gib=0.0001").out
    assert "Does not fit" in out and "execution.remat=block" in out
    # A compiler that knows its device's memory refuses; the exact rows are printed all the same.
    given(dataclasses.replace(planned, compiled=None, refusal="Ran out of memory on HBM"))
    refused = call("plan", config, "--mesh=data=1")
    assert refused.code == 0
    assert "Does not fit, says the compiler: Ran out of memory on HBM. Fewer" in refused.out
    found = json.loads(call("plan", config, "--mesh=data=1", "--memory_gib=99", "--json").out)
    assert found["fits"] is False and found["largest_part"] == "temporaries"


def test_notes_on_what_is_an_estimate(config, planned, given):
    smaller = dataclasses.replace(planned.compiled, mesh={"data": 2, "fsdp": 1, "model": 1})
    flops = dataclasses.replace(
        planned.flops, compiler_placed=5 * 10**9, once=10**9, opaque={"pallas_call": 3}
    )
    given(
        dataclasses.replace(
            planned,
            compiled=smaller,
            flops=flops,
            remat="block",
            compute_dtype="bfloat16",
        )
    )
    out = call("plan", config, "--mesh=data=1").out
    for text in (
        "Compiled for data=2 × fsdp=1 × model=1 with the same batch per device",
        "bfloat16 products in float32",
        "remat=block computes a second time is counted",
        "5 GFLOP are the update rule's",
        "an upper bound",
        "1 GFLOP stand in loops whose length depends on data",
        "3 × pallas_call",
    ):
        assert text in out, text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mesh=data=16,model=8",), "heads = 12 does not divide over model=8"),
        (("--mesh=data=16,model=8",), "vocab = 32128, heads = 12, kv = 12, mlp = 2048 together "
         "admit model = 1, 2, 4."),
        (("--mesh=data=48,model=2",), "= 128 does not divide over data=48 × fsdp=1; the nearest "
         "sizes that do are 96 and 144."),
        ((), "a mesh that is only planned states every size"),
        (("--mesh=data=2", "--target=tpu"), "names its chips, as in 'tpu:v5e:2x4'"),
        (("--mesh=data=2", "--target=gpu"), "write 'cuda'"),
        (("--mesh=data=2", "--memory_gib=-1"), "--memory_gib must be a number of GiB above 0"),
        (("--mesh=data=2", "--memory_gb=1"), "did you mean '--memory_gib'"),
        (("--mesh=data=4",), "needs 4 virtual devices, and JAX has started in this process"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    result = call("plan", T5, *arguments)
    assert result.code == 2 and result.out == ""
    assert message in result.err and result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def fresh(*arguments):
    """The command in a process of its own, which has as many devices as it asks for."""
    code = "import sys; from glu_lab.cli.main import main; sys.exit(main())"
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "plan", *arguments, "--json"],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_process_of_its_own_has_the_devices_of_the_mesh(config):
    found = fresh(config, "--mesh=data=2,model=4")
    assert found["devices"] == 8 and found["compiled_mesh"] == found["mesh"]
    assert found["temp_bytes"] > 0 and found["compiler"].startswith("XLA for CPU")
    assert found["collective_bytes"]["model"] > 0 and found["collective_bytes"]["data"] > 0


@pytest.mark.heavy
def test_t5_base_on_512_devices():
    start = time.perf_counter()
    found = fresh(T5, "--mesh=data=128,model=4")
    assert found["devices"] == 512
    # 32-bit scalars in four parts, but for what is whole on every device: 62 norm scales.
    whole = 62 * 768
    assert found["params_bytes"] == 4 * ((222_903_552 - whole) // 4 + whole)
    assert found["gradient_bytes"] == found["params_bytes"]
    assert found["flops_per_step"] * 512 == found["model_flops_per_step"]
    assert found["temp_bytes"] > found["gradient_bytes"]
    assert found["collective_bytes"]["data"] >= found["gradient_bytes"]
    assert time.perf_counter() - start < 90


@pytest.mark.heavy
def test_t5_base_on_eight_tpu_chips():
    pytest.importorskip("libtpu")
    small = ("--config.training.batch_size=8", "--config.eval_batch_size=8")
    found = fresh(T5, "--mesh=data=-1,model=4", "--target=tpu:v5e:2x4", *small)
    assert found["devices"] == 8 and found["compiler"].startswith("XLA for TPU, libtpu")
    assert found["temp_bytes"] > found["gradient_bytes"]
    # Tiles of (8, 128) pad what is smaller.
    assert found["argument_bytes"] >= found["params_bytes"] + found["optimizer_bytes"]
    assert found["collective_bytes"]["data"] >= found["gradient_bytes"]
    # Without --config.training.batch_size: 64 sequences a chip.
    large = fresh(T5, "--mesh=data=2,model=4", "--target=tpu:v5e:2x4")
    assert large["fits"] is None and "HBM" in large["refusal"] and large["temp_bytes"] is None
    assert large["params_bytes"] == found["params_bytes"]
