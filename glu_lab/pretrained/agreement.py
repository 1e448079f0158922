"""Whether two Model Specs are one function at inference."""

from typing import Any

from glu_lab.spec.codec import encode
from glu_lab.spec.identity import difference
from glu_lab.spec.model import Model

#: What a Model Spec says of training, and of lengths that it is asked to see.
_NOT_FUNCTION = ("depth_scaled_output", "max_length")


def _function(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            name: _function(value)
            for name, value in tree.items()
            if name not in _NOT_FUNCTION and not name.endswith("_init") and "dropout" not in name
        }
    return [_function(item) for item in tree] if isinstance(tree, list) else tree


def differences(ours: Model, theirs: Model) -> list[str]:
    """What makes them two functions, one line a field: ``norm.eps: 1e-06 → 1e-05``."""
    trees = [_function(encode(model)) for model in (ours, theirs)]
    for tree in trees:
        _drop_unused(tree)
    return difference(*trees)


def _drop_unused(tree: dict[str, Any]) -> None:
    """Drops, in place, the fields of positions that its kind does not read."""
    positions = tree["positions"]
    kept = {
        "rope": ("kind", "rope_theta"),
        "relative": ("kind", "num_buckets", "max_distance"),
    }.get(positions["kind"], ("kind",))
    tree["positions"] = {name: positions[name] for name in kept}
