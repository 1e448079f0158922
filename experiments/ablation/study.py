"""All twelve variants of the ablation in a tiny T5, at exactly equal parameters."""

from pathlib import Path

from glu_lab.configs import load
from glu_lab.spec.variants import ABLATION_VARIANTS
from glu_lab.studies import Study, variants_matched

ROOT = Path(__file__).resolve().parents[2]

#: Longer than the quickstart: some seeds leave the first plateau late.
STEPS = 800


def get_study() -> Study:
    """The variants of the table, two-matrix FFNs of width 3k beside gated ones of 2k."""
    base = load(
        f"{ROOT / 'configs' / 't5_tiny_sotu.py'}:relu", [f"--config.training.steps={STEPS}"]
    )
    return Study(
        name="ablation",
        question="Which of twelve FFNs of the same size fills spans best?",
        base=base,
        axes=variants_matched(ABLATION_VARIANTS, base),
        baseline="relu",
        seeds=(0, 1, 2),
        budget="params",
        tolerance=0.0,
        notes="Tiny T5 on State of the Union addresses, span filling; no biases, no dropout.",
    )
