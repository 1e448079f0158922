"""Tiny random checkpoints on the disk, written by the safetensors package."""

import json
import shutil

import numpy as np
import pytest

from glu_lab.layouts.conversion import Request
from glu_lab.layouts.convert import convert

LAYERS, D, F = 3, 6, 8


def llama_tensors(layers=LAYERS, d=D, f=F, dtype="float32", seed=0):
    """FFN tensors of a Llama, as nn.Linear stores them."""
    rng = np.random.default_rng(seed)
    shapes = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
    return {
        f"model.layers.{layer}.mlp.{name}.weight": rng.normal(size=shape).astype(dtype)
        for layer in range(layers)
        for name, shape in shapes.items()
    }


def others(seed=1):
    """Tensors of a Llama that are of no FFN."""
    rng = np.random.default_rng(seed)
    return {
        "model.embed_tokens.weight": rng.normal(size=(11, D)).astype("float32"),
        "model.layers.0.input_layernorm.weight": np.ones(D, "float32"),
        "model.norm.weight": np.ones(D, "float32"),
    }


def write(folder, tensors, config=None):
    """A folder with one safetensors file, and perhaps a config."""
    save = pytest.importorskip("safetensors.numpy").save_file
    folder.mkdir(parents=True)
    save(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder):
    """All tensors of a folder, by the safetensors package."""
    return pytest.importorskip("safetensors.numpy").load_file(folder / "model.safetensors")


def request(source, target, **changes):
    """A conversion from Llama to four Megatron ranks, unless changed."""
    fields = {
        "source_layout": "hf-llama",
        "target_layout": "megatron",
        "ranks": 4,
        "variant": "swiglu",
        **changes,
    }
    return Request(source=source, target=target, **fields)


def megatron(folder, **changes):
    """A converted checkpoint, and its source, fresh in a folder."""
    source = write(folder / "llama", llama_tensors())
    convert(request(source, folder / "megatron", **changes))
    return folder / "megatron"


def edit(folder, change):
    """Changes a checkpoint's manifest."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def rewrite(folder, change, rank=1):
    """Changes the tensors of one rank."""
    save = pytest.importorskip("safetensors.numpy").save_file
    tensors = read(folder / f"mp_rank_{rank:02d}")
    change(tensors)
    save(tensors, folder / f"mp_rank_{rank:02d}" / "model.safetensors")


def copy(folder, place):
    """A copy of a checkpoint to spoil."""
    return shutil.copytree(folder, place)
