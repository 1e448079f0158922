"""Failures 28 to 39: interpretation, and alternatives to the dense FFN.

One of them is planted, the swap of a trained model's activation. The others are of sublayers and
analyses that the lab does not have yet: they are listed, and nothing is claimed for them.
"""

import dataclasses
from pathlib import Path

from glu_lab.conformance.failures.row import NOT_BUILT, Failure, Planted
from glu_lab.spec.variants import branches_of


def swapped_without_recovery(folder: Path) -> list[Planted]:
    """33: SwiGLU's weights read as dReLU."""
    # Only this row trains.
    from glu_lab.conformance.failures.trained import trained_weights

    right = trained_weights(folder)
    swapped = right.ffn.replace(branches=branches_of("drelu"))
    return [
        Planted(
            name="trained as SwiGLU, read as dReLU, no step of recovery training",
            check="loss before and after",
            fault=dataclasses.replace(right, ffn=swapped),
            clean=right,
        )
    ]


#: 28 to 31.
INTERPRETATION: tuple[Failure, ...] = (
    Failure(
        id=28,
        title="FFN coefficients read as an attention distribution",
        symptom="Hidden values are shown as percentages of something.",
        cause="They are not normalised over channels, and may be negative.",
        detector="Sums over channels are not 1.",
        fix="Report values with their sign and scale.",
        build=NOT_BUILT,
    ),
    Failure(
        id=29,
        title="One neuron called a fact",
        symptom="A channel that fires on a topic is said to hold it.",
        cause="Correlation shows neither that it is needed nor that it is enough.",
        detector="Ablation and patching with controls and paraphrases.",
        fix="Claim what the intervention showed.",
        build=NOT_BUILT,
    ),
    Failure(
        id=30,
        title="A low-rank edit taken to be local",
        symptom="Unrelated prompts change.",
        cause="Every input with a part along the update's direction is moved, whatever its rank.",
        detector="Neighbourhood and unrelated-task regressions.",
        fix="Measure the reach of an edit on held-out inputs.",
        build=NOT_BUILT,
    ),
    Failure(
        id=31,
        title="Dictionary features taken for true concepts",
        symptom="Labels of a sparse autoencoder stand for what the model knows.",
        cause="Reconstruction, sparsity, splitting and labelling are assumptions of the method.",
        detector="Seeds, dictionary sizes and held-out labels that disagree.",
        fix="Report the dictionary's errors with its features.",
        build=NOT_BUILT,
    ),
)

#: 32 to 39.
ALTERNATIVES: tuple[Failure, ...] = (
    Failure(
        id=32,
        title="Activation sparsity called sparse execution",
        symptom="Many zeros, no seconds saved.",
        cause="A dense kernel multiplies by zeros too.",
        detector="Wall time beside the share of zeros.",
        fix="Count predictor, gathering and the sparse kernel.",
        build=NOT_BUILT,
    ),
    Failure(
        id=33,
        title="SwiGLU exchanged for dReLU without recovery training",
        symptom="Weights load, since both have three matrices; the loss jumps.",
        cause="A conversion of the activation is a recipe of continued training, and the swap is "
        "its first line.",
        detector="Validation loss on the same batches before and after, against a declared limit.",
        fix="Train on after the swap, and record the loss before, after and during it.",
        build=swapped_without_recovery,
    ),
    Failure(
        id=34,
        title="Every key of a memory table scored",
        symptom="A sparse layer that costs like a dense one of a million channels.",
        cause="The decomposition into product keys was left out.",
        detector="Operations per token against the two half-tables.",
        fix="Rank pairs of the best halves.",
        build=NOT_BUILT,
    ),
    Failure(
        id=35,
        title="The memory's process group taken for the MLP's",
        symptom="Rows come from the wrong rank.",
        cause="Parallel memory exchanges indices and parts of values, not partial sums.",
        detector="The sharded lookup against the whole one.",
        fix="Give the memory a mesh axis of its own.",
        build=NOT_BUILT,
    ),
    Failure(
        id=36,
        title="MemoryFormer called a converted dense checkpoint",
        symptom="A loader that looks for dense matrices.",
        cause="It is trained from scratch, attention projections included.",
        detector="The manifest's kind of sublayer.",
        fix="Roll back to another release, not to another reading.",
        build=NOT_BUILT,
    ),
    Failure(
        id=37,
        title="A hard sign address differentiated",
        symptom="Gradients of 0, or invented ones.",
        cause="The index has no derivative; the continuous confidence has.",
        detector="Finite differences of the input.",
        fix="Differentiate the confidence, and update the chosen rows.",
        build=NOT_BUILT,
    ),
    Failure(
        id=38,
        title="Scaling claims of KANs carried over to language models",
        symptom="An exponent from function fitting in a text on language models.",
        cause="The evidence is of other tasks.",
        detector="A study on text at a matched budget.",
        fix="Name the task of each number.",
        build=NOT_BUILT,
    ),
    Failure(
        id=39,
        title="A paper's figure without its experiment",
        symptom="A curve without model, task and source.",
        cause="The figure was copied and its contract was not.",
        detector="A published column states contract and status.",
        fix="Print both beside the number.",
        build=NOT_BUILT,
    ),
)
