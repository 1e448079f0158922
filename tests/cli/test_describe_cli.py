"""``glu-lab describe`` as a user calls it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glu_lab.cli import main

ROOT = Path(__file__).parents[2]
T5 = f"--config={ROOT}/configs/t5_base_c4.py"
LM = f"--config={ROOT}/configs/smollm2_135m.py"


def run(capsys, *arguments):
    code = main.main(["describe", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def report(capsys, *arguments):
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize(("variant", "d_ff"), [("relu", 3072), ("swiglu", 2048)])
def test_t5_base_is_counted_exactly(capsys, variant, d_ff):
    found = report(capsys, f"{T5}:{variant}")
    assert found["total_params"] == 222_903_552 == sum(found["components"].values())
    assert found["components"]["decoder.ffn"] == 12 * 4_718_592
    assert found["ffn"]["d_ff"] == d_ff
    assert found["ffn"]["params_per_layer"] == found["ffn"]["macs_per_token"] == 4_718_592
    assert found["lengths"] == {"encoder": 512, "decoder": 114}
    # 12 layers of q, k, v, o, and of the 12 decoder layers' cross-attention keys and values.
    assert found["macs_per_token"]["encoder"]["attention_projections"] == 12 * 6 * 768 * 768
    assert found["macs_per_token"]["encoder"]["attention_scores"] == 12 * 2 * 768 * 512
    assert found["macs_per_token"]["decoder"]["attention_scores"] == 12 * 2 * 768 * (114 + 512)
    assert found["macs_per_token"]["decoder"]["logits"] == 768 * 32_128


def test_a_decoder_has_one_stack(capsys):
    found = report(capsys, LM)
    assert found["total_params"] == 134_515_008
    assert found["lengths"] == {"decoder": 512}
    assert set(found["macs_per_token"]) == {"decoder"}


def test_standard_deviations_are_t5s(capsys):
    spread = {w["path"]: w["stddev"] for w in report(capsys, f"{T5}:swiglu")["weights"]}
    assert spread["decoder/layers/ffn/wi"] == pytest.approx(768**-0.5)
    assert spread["decoder/layers/ffn/wo"] == pytest.approx(2048**-0.5)
    assert spread["decoder/layers/attention/q"] == pytest.approx((768 * 64) ** -0.5)


def test_overrides_are_described_as_stated(capsys):
    found = report(capsys, f"{T5}:swiglu", "--config.model.ffn.d_ff=1000", "--rows", "4096")
    assert found["ffn"]["d_ff"] == 1000
    assert found["ffn"]["rows"] == 4096
    hidden = next(t for t in found["ffn"]["tensors"] if t["name"] == "H")
    assert hidden["shape"] == [4096, 1000] and hidden["bytes"] == 4096 * 1000 * 4


def test_rows_are_one_micro_batch_by_default(capsys):
    found = report(capsys, f"{T5}:swiglu", "--config.training.microbatches=4")
    assert found["ffn"]["rows"] == 128 // 4 * 512


def column(out, number=0):
    """Cells of one column of every table drawn, put together where a cell was folded."""
    cells, before = [], ""
    for line in out.splitlines():
        if line.startswith("│"):
            row = [cell.strip() for cell in line.strip("│").split("│")]
            # A folded row has no number in its last column.
            if before and not row[-1]:
                cells[-1] += row[number]
            else:
                cells.append(row[number])
        before = line if line.startswith("│") else ""
    return cells


@pytest.mark.parametrize("width", [80, 100])
def test_the_tables_fit_the_terminal_and_no_name_is_cut(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    arguments = (f"{T5}:swish_learned*linear", "--config.model.ffn.d_ff=2048")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    drawn = [line for line in out.splitlines() if line[:1] in "│┃┏┡├└"]
    assert drawn and max(map(len, drawn)) <= width
    assert "…" not in out
    found = report(capsys, *arguments)
    shown = column(out)
    assert {w["path"] for w in found["weights"] if w["stddev"]} <= set(shown)
    assert set(found["components"]) <= set(shown)
    formulas = {"".join(t["formula"].split()) for t in found["ffn"]["tensors"]}
    assert formulas <= {"".join(cell.split()) for cell in column(out, 1)}
    if width < 100:
        return
    for text in ("222,903,576", "850.3 MiB", "logits", "at 1", "0.02210"[:6]):
        assert text in out, text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{T5}:swigl",), "did you mean 'swiglu'"),
        (("--config=configs/none.py",), "no config file 'configs/none.py'"),
        ((f"{T5}:relu", "--rows", "0"), "--rows must be ≥ 1"),
        ((f"{T5}:relu", "--jsn"), "did you mean '--json'"),
        ((), "--config"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert message in err and err.startswith("error: ") and "Traceback" not in err


def test_it_answers_in_under_four_seconds():
    """Of this process's own CPU time; nothing is compiled."""
    code = (
        "import sys, time, resource\n"
        "from glu_lab.cli.main import main\n"
        f"assert main(['describe', '{T5}:swiglu', '--json']) == 0\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["total_params"] == 222_903_552
    seconds = float(done.stderr.splitlines()[-1])
    assert seconds < 4, (seconds, time.perf_counter() - start)
