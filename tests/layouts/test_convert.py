"""Conversions on the disk: bit for bit both ways, refused before a write, whole or not at all."""

import json
import subprocess
import sys

import numpy as np
import pytest

from glu_lab.errors import RecordError, UnknownNameError
from glu_lab.layouts import LAYOUTS, LayoutError, Output, find, from_canonical, to_toml
from glu_lab.layouts.convert import convert
from glu_lab.layouts.proof import ProofError
from glu_lab.layouts.verify import verify
from glu_lab.spec import variant
from tests.layouts import checkpoints as made
from tests.layouts import rows


def test_llama_to_four_megatron_ranks_and_back_is_the_same_bits(tmp_path):
    tensors = made.llama_tensors(dtype="float16")
    source = made.write(tmp_path / "llama", tensors)
    done = convert(made.request(source, tmp_path / "megatron"))
    assert done.proof.largest == 0.0

    # Each rank is [W_r; V_r], cut by hand.
    gate, up = (tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    for rank in range(4):
        own = made.read(tmp_path / "megatron" / f"mp_rank_{rank:02d}")
        cut = slice(2 * rank, 2 * rank + 2)
        want = np.concatenate([gate[cut], up[cut]])
        assert rows.bits(own["decoder.layers.1.mlp.linear_fc1.weight"]) == rows.bits(want)

    convert(
        made.request(
            tmp_path / "megatron",
            tmp_path / "again",
            source_layout=None,
            target_layout="hf-llama",
            ranks=1,
            variant=None,
        )
    )
    rows.assert_same(made.read(tmp_path / "again"), tensors)


@pytest.mark.parametrize("name", ["hf-phi3", "olmo1", "t5x-scanned", "glu-lab", "gemma-einsum"])
def test_other_targets_come_back_the_same(tmp_path, name):
    source = made.write(tmp_path / "llama", made.llama_tensors())
    text = "geglu_tanh" if name == "gemma-einsum" else "swiglu"
    there, back = tmp_path / "there", tmp_path / "back"
    convert(made.request(source, there, target_layout=name, ranks=1, variant=text))
    convert(
        made.request(
            there, back, source_layout=None, target_layout="hf-llama", ranks=1, variant=None
        )
    )
    rows.assert_same(made.read(back), made.llama_tensors())


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_layout_goes_to_the_canonical_form_and_back(tmp_path, name):
    """On the disk, with all the biases, layers and experts that it can have."""
    layout = LAYOUTS[name]
    spec = rows.specs(layout, 5, 3 * rows.width(layout))[-1]
    leading = rows.leadings(layout)[-1]
    tensors = from_canonical(layout, rows.normal_params(spec, leading), spec, leading=leading)
    tensors = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    source = made.write(tmp_path / "source", tensors)
    there, back = tmp_path / "there", tmp_path / "back"
    product = "gpt_oss" if spec.branches[-1].offset else None
    product = product or "*".join(str(branch.activation) for branch in spec.branches)
    convert(
        made.request(
            source,
            there,
            source_layout=name,
            target_layout="glu-lab",
            ranks=1,
            variant=product,
            experts=rows.SIZES["expert"] if "expert" in leading else None,
            leading=leading,
            every=True,
            target_prefix="layers.{layer}.ffn." if name == "phi4mm-audio" else None,
        )
    )
    assert not verify(there).differences
    done = convert(
        made.request(there, back, source_layout=None, target_layout=name, ranks=1, variant=None)
    )
    assert done.proof.largest == 0.0
    rows.assert_same(made.read(back), tensors)


def test_prefixes_that_no_layout_knows_can_be_given_and_are_remembered(tmp_path):
    tensors = {name.replace("model.", "lm.body."): a for name, a in made.llama_tensors().items()}
    source = made.write(tmp_path / "lm", tensors)
    here, there = "lm.body.layers.{layer}.mlp.", "mine.{layer}."
    with pytest.raises(LayoutError, match="no tensor of an FFN"):
        convert(made.request(source, tmp_path / "out"))
    convert(made.request(source, tmp_path / "out", source_prefix=here, target_prefix=there))
    assert "mine.2.linear_fc1.weight" in made.read(tmp_path / "out" / "mp_rank_03")
    assert not verify(tmp_path / "out").differences
    convert(
        made.request(
            tmp_path / "out",
            tmp_path / "again",
            source_layout=None,
            target_layout="hf-llama",
            target_prefix=here,
            ranks=1,
            variant=None,
        )
    )
    rows.assert_same(made.read(tmp_path / "again"), tensors)


def test_large_targets_are_several_files_each_rank_with_its_index(tmp_path):
    source = made.write(tmp_path / "llama", made.llama_tensors())
    done = convert(made.request(source, tmp_path / "out", ranks=2, shard_bytes=300))
    files = {entry["file"] for entry in done.manifest["checkpoint"]["tensors"]}
    assert "mp_rank_01/model-00004-of-00004.safetensors" in files and len(files) == 8
    assert (tmp_path / "out" / "mp_rank_01" / "model.safetensors.index.json").exists()
    assert not verify(tmp_path / "out").differences


def test_memory_stays_at_a_few_tensors_whatever_the_files_size(tmp_path):
    """96 MiB of 4 MiB tensors; three of them, and what the writer and the proof hold."""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    source = made.write(tmp_path / "llama", made.llama_tensors(layers=8, d=512, f=2048))
    script = (
        "from pathlib import Path\n"
        "from glu_lab.layouts.conversion import Request\n"
        "from glu_lab.layouts.convert import convert\n"
        "def peak():\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    return int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
        "before = peak()\n"
        f"convert(Request(source=Path({str(source)!r}), target=Path({str(tmp_path / 'out')!r}),\n"
        "    source_layout='hf-llama', target_layout='megatron', ranks=2, variant='swiglu'))\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3 * 4 * 2**20 + 48 * 2**20


def test_a_users_own_layout_is_in_the_manifest_in_full(tmp_path):
    """The way back needs no TOML file."""
    own = to_toml([find("hf-phi3")]).replace('"hf-phi3"', '"my-packed"')
    own = "\n".join(line for line in own.splitlines() if not line.startswith("aliases"))
    (tmp_path / "mine.toml").write_text(own)
    from glu_lab.layouts import read_layouts

    layouts = read_layouts(tmp_path / "mine.toml")
    source = made.write(tmp_path / "llama", made.llama_tensors())
    there, back = tmp_path / "there", tmp_path / "back"
    convert(made.request(source, there, target_layout="my-packed", ranks=1, layouts=layouts))
    convert(
        made.request(
            there, back, source_layout=None, target_layout="hf-llama", ranks=1, variant=None
        )
    )
    rows.assert_same(made.read(back), made.llama_tensors())


def test_the_manifest_says_what_was_written_and_what_nobody_knows(tmp_path):
    document = json.loads((made.megatron(tmp_path) / "manifest.json").read_text())
    assert document["architecture"]["variant"] == "swiglu"
    assert [b["activation"] for b in document["architecture"]["ffn"]["branches"]] == [
        "silu",
        "linear",
    ]
    assert document["numerics"]["accumulation_dtype"] == "implementation_defined"
    assert document["training"]["initializers"] == "implementation_defined"
    assert "wi_init" not in document["architecture"]["ffn"]
    assert document["parallelism"]["folders"] == [f"mp_rank_{r:02d}" for r in range(4)]
    assert len(document["checkpoint"]["tensors"]) == 4 * 2 * made.LAYERS
    assert document["provenance"]["source"]["function_from"] == "user"
    # Every tensor that was read, whether copied or built from.
    hashed = {entry["name"] for entry in document["provenance"]["source"]["tensors"]}
    assert hashed == made.llama_tensors().keys()


def _refused(tmp_path, tensors, match, config=None, error=LayoutError, **changes):
    """A refusal that leaves the source as it was and nothing else."""
    source = made.write(tmp_path / "llama", tensors, config)
    before = (source / "model.safetensors").read_bytes()
    with pytest.raises(error, match=match):
        convert(made.request(source, tmp_path / "out" / "target", **changes))
    assert not (tmp_path / "out").exists()
    assert (source / "model.safetensors").read_bytes() == before


def _without(name):
    return {key: value for key, value in made.llama_tensors().items() if key != name}


def _with(name, array):
    return {**made.llama_tensors(), name: array}


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "match", "changes"),
    [
        (_without(UP), r"up_proj.weight' missing", {}),
        (_with("model.layers.1.mlp.extra.weight", np.ones(2, "f4")), "extra", {}),
        (_with(UP, np.ones((8, 7), "f4")), "up_proj", {}),
        (_with(UP, np.full((8, 6), np.nan, "f4")), r"up_proj.*48 NaN", {}),
        (_with(UP, np.full((8, 6), np.inf, "f4")), r"up_proj.*48 infinite", {}),
        (made.llama_tensors(), "d_ff=8 cannot be cut into 3", {"ranks": 3}),
        (made.llama_tensors(), r"function.*gelu_erf\*linear", {"variant": None}),
        (made.llama_tensors(), "does not compute 'bilinear'", {"variant": "bilinear"}),
        (made.llama_tensors(), "hf-phi3 does not know.*gate_proj", {"source_layout": "hf-phi3"}),
        (made.llama_tensors(), "no tensor of an FFN", {"source_layout": "llama-pth"}),
        ({**made.llama_tensors(), **made.others()}, r"3 tensors are of no FFN.*embed_tokens", {}),
    ],
)
def test_refused_before_any_write(tmp_path, tensors, match, changes):
    _refused(tmp_path, tensors, match, **changes)


def test_an_unknown_layout_is_refused_with_the_nearest_name(tmp_path):
    _refused(
        tmp_path,
        made.llama_tensors(),
        "did you mean 'hf-llama'",
        error=UnknownNameError,
        source_layout="hf-lama",
    )


def test_the_config_states_the_function_and_contradictions_are_refused(tmp_path):
    config = {"model_type": "llama", "hidden_act": "gelu"}
    _refused(tmp_path, made.llama_tensors(), "config states 'gelu_erf", config=config)
    done = convert(
        made.request(
            tmp_path / "llama",
            tmp_path / "target",
            target_layout="hf-gemma",
            ranks=1,
            variant=None,
        )
    )
    assert done.manifest["architecture"]["variant"] == "geglu_erf"
    assert done.function_from.endswith("config.json")


def test_a_config_of_another_projects_model_contradicts_the_layout(tmp_path):
    """Same names, another order: only the config's model_type tells."""
    spec = variant("swiglu", d_model=6, d_ff=8)
    params = rows.normal_params(spec, ("layer",))
    tensors = from_canonical(LAYOUTS["internlm2"], params, spec, leading=("layer",))
    source = made.write(tmp_path / "model", tensors, {"model_type": "internlm2"})
    # A user's row that takes w3 for the gate.
    own = to_toml([find("internlm2")]).replace('"internlm2"', '"swapped"')
    own = own.replace("feed_forward.w1.", "feed_forward.wX.")
    own = own.replace("feed_forward.w3.", "feed_forward.w1.").replace("wX", "w3")
    own = "\n".join(line for line in own.splitlines() if not line.startswith("aliases"))
    (tmp_path / "mine.toml").write_text(own)
    from glu_lab.layouts import read_layouts

    with pytest.raises(LayoutError, match=r"model_type 'internlm2'.*lie as internlm2"):
        convert(
            made.request(
                source,
                tmp_path / "target",
                source_layout="swapped",
                layouts=read_layouts(tmp_path / "mine.toml"),
            )
        )
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("other", ["megatron-interleave-1", "megatron-dist"])
def test_a_source_layout_that_the_manifest_contradicts_is_refused(tmp_path, other):
    source = made.megatron(tmp_path)
    with pytest.raises(LayoutError, match=rf"lie as megatron; asked for is {other}"):
        convert(
            made.request(
                source, tmp_path / "target", source_layout=other, target_layout="hf-llama", ranks=1
            )
        )


def test_the_row_proof_fails_for_a_manifest_of_the_wrong_packing(tmp_path):
    """Shapes fit and names too; the rows that the first conversion recorded do not."""
    source = made.megatron(tmp_path)
    made.edit(source, lambda m: m["checkpoint"].update(layout="megatron-interleave-1"))
    with pytest.raises(ProofError, match="row proof failed.*megatron-interleave-1"):
        convert(
            made.request(
                source,
                tmp_path / "target",
                source_layout=None,
                target_layout="hf-llama",
                ranks=1,
                variant=None,
            )
        )
    assert not (tmp_path / "target").exists()


def test_tensors_that_are_written_wrongly_do_not_pass_the_row_proof(tmp_path, monkeypatch):
    """The proof reads the files again: one swapped half of one rank, and nothing is named."""
    source = made.write(tmp_path / "llama", made.llama_tensors())
    build = Output.build

    def swapped(output, read):
        array = build(output, read)
        if output.key == ("decoder.layers.0.mlp.linear_fc1.weight", 2):
            return np.concatenate(np.split(array, 2)[::-1])
        return array

    monkeypatch.setattr(Output, "build", swapped)
    with pytest.raises(ProofError, match="megatron, decoder layer 0"):
        convert(made.request(source, tmp_path / "out" / "megatron"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("phase", ["writing", "proving"])
def test_an_interrupted_conversion_leaves_nothing(tmp_path, phase):
    source = made.write(tmp_path / "llama", made.llama_tensors())
    seen = []

    def stop(now, done, total):
        seen.append(now)
        if now == phase and seen.count(phase) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(made.request(source, tmp_path / "out" / "megatron"), stop)
    assert list((tmp_path / "out").iterdir()) == []
    rows.assert_same(made.read(source), made.llama_tensors())


def test_a_target_that_exists_is_left_alone(tmp_path):
    target = made.megatron(tmp_path)
    before = (target / "manifest.json").read_bytes()
    with pytest.raises(RecordError, match="exists and is left as it is"):
        convert(made.request(tmp_path / "llama", target))
    assert (target / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("place", ["llama", "llama/megatron", "."])
def test_a_target_that_is_in_around_or_its_own_source_is_refused(tmp_path, place):
    source = made.write(tmp_path / "llama", made.llama_tensors())
    with pytest.raises(RecordError, match="would overwrite its own source"):
        convert(made.request(source, tmp_path / place))
    assert [path.name for path in source.iterdir()] == ["model.safetensors"]


def test_the_rest_is_kept_when_asked_for_and_said_not_to_be_converted(tmp_path):
    tensors = {**made.llama_tensors(), **made.others()}
    source = made.write(tmp_path / "llama", tensors)
    done = convert(made.request(source, tmp_path / "megatron", rest="keep"))
    first, second = (made.read(tmp_path / "megatron" / f"mp_rank_0{rank}") for rank in (0, 1))
    rows.assert_same({name: first[name] for name in made.others()}, made.others())
    assert not second.keys() & made.others().keys()
    said = {entry["name"] for entry in done.manifest["not_converted"]}
    assert said == made.others().keys() == set(done.kept)
    convert(
        made.request(
            tmp_path / "megatron",
            tmp_path / "again",
            source_layout=None,
            target_layout="hf-llama",
            ranks=1,
            variant=None,
            rest="keep",
        )
    )
    rows.assert_same(made.read(tmp_path / "again"), tensors)


def test_biases_of_zeros_are_created_only_when_asked_for_and_listed(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "model.layers.0.mlp.up_proj.weight": rng.normal(size=(8, 6)).astype("f4"),
        "model.layers.0.mlp.down_proj.weight": rng.normal(size=(6, 8)).astype("f4"),
    }
    to_gpt2 = {
        "source_layout": "hf-nemotron",
        "target_layout": "hf-gpt2",
        "ranks": 1,
        "variant": "gelu_tanh",
    }
    _refused(tmp_path, tensors, "created only when asked for", **to_gpt2)
    done = convert(made.request(tmp_path / "llama", tmp_path / "gpt2", **to_gpt2, zero_biases=True))
    created = done.manifest["checkpoint"]["created_zeros"]
    assert created == [f"transformer.h.0.mlp.{name}.bias" for name in ("c_fc", "c_proj")]
    written = made.read(tmp_path / "gpt2")
    assert not any(written[name].any() for name in created)
    assert not verify(tmp_path / "gpt2").differences


def test_tensors_that_torch_stored_once_are_noted(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(a) for name, a in made.llama_tensors(layers=2).items()}
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = "model.layers.{}.mlp." + part + ".weight"
        tensors[name.format(1)] = tensors[name.format(0)]
    source = tmp_path / "tied.pt"
    torch.save(tensors, source)
    done = convert(made.request(source, tmp_path / "packed", target_layout="olmo1", ranks=1))
    groups = done.manifest["checkpoint"]["aliases"]
    assert [[member["name"] for member in group] for group in groups] == [
        [f"transformer.blocks.{layer}.{part}.weight" for layer in (0, 1)]
        for part in ("ff_proj", "ff_out")
    ]
