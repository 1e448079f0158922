"""Five variants in a tiny T5, at exactly equal parameters."""

from pathlib import Path

from glu_lab.configs import load
from glu_lab.studies import Study, variants_matched

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("relu", "gelu_tanh", "geglu_tanh", "swiglu", "drelu")


def get_study() -> Study:
    """Two-matrix FFNs of width 3k beside gated ones of 2k, no biases, three seeds."""
    base = load(f"{ROOT / 'configs' / 't5_tiny_sotu.py'}:relu")
    return Study(
        name="quickstart",
        question="Do gated FFNs fill spans better than ungated ones of the same size?",
        base=base,
        axes=variants_matched(VARIANTS, base),
        baseline="relu",
        seeds=(0, 1, 2),
        budget="params",
        tolerance=0.0,
        notes="Tiny T5 on State of the Union addresses, span filling; no biases, no dropout.",
    )
