"""The manifest: what a run's weights are, in one document.

It binds the Spec, the Layout and the Execution of a model to their provenance. A field whose value
is the implementation's business says ``implementation_defined``, never a guess.
"""

from collections.abc import Mapping
from typing import Any

from glu_lab import __version__
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.identity import identity, identity_hash
from glu_lab.spec.variants import variant_name

MANIFEST_VERSION = 1


def manifest(
    experiment: Experiment,
    data_fingerprint: str,
    *,
    parameters: Mapping[str, Mapping[str, Any]],
    revision: str | None,
) -> dict[str, Any]:
    """The manifest of a training run.

    Args:
        experiment: the run.
        data_fingerprint: content hash of its data.
        parameters: canonical path → shape, logical axes, initial standard deviation.
        revision: of the source tree; None where it is not known.

    Returns:
        A JSON-ready document.
    """
    model, optimizer = experiment.model, experiment.training.optimizer
    numerics = encode(experiment.numerics)
    return {
        "manifest_version": MANIFEST_VERSION,
        "architecture": {"variant": variant_name(model.ffn), **encode(model)},
        "layout": {
            "name": "glu_lab",
            "orientation": "(inputs, outputs)",
            "branches": "own axis, in the order of the Spec",
            "layers": "leading axis",
            "parameters": {path: dict(entry) for path, entry in parameters.items()},
        },
        "numerics": numerics,
        "execution": encode(experiment.execution),
        "training": {
            "initializers": {
                "wi": encode(model.ffn.wi_init),
                "wo": encode(model.ffn.wo_init),
                "attention": {
                    name: encode(getattr(model.attention, f"{name}_init")) for name in "qkvo"
                },
                "embedding": encode(model.embedding_init),
                "depth_scaled_output": model.depth_scaled_output,
                "key": "hash(seed, canonical path, layer)",
            },
            "dropout": {
                "hidden": model.ffn.hidden_dropout,
                "hidden_shared_axes": list(model.ffn.hidden_dropout_shared),
                "residual_branch": model.residual_dropout,
                "attention_weights": model.attention.dropout,
                "embedding": model.embedding_dropout,
                "final": model.final_dropout,
            },
            "remat_boundary": experiment.execution.remat,
            "rng_replay": "counter-based: hash(root key, step, micro-batch, path, layer)",
            "gradient_accumulation_dtype": numerics["gradient_accumulation_dtype"],
            "optimizer": encode(optimizer),
            "optimizer_state_dtype": numerics["optimizer_state_dtype"],
            "optimizer_state_sharding": "as the parameters, by execution.mesh and execution.rules",
        },
        "implementation": {"project": "glu_lab", "version": __version__, "revision": revision},
        "identity_hash": identity_hash(experiment, data_fingerprint),
        "identity": identity(experiment, data_fingerprint),
    }
