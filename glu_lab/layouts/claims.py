"""What is said of a checkpoint's layout and function, by whom, and whether all agree.

Tensors never say which function they are of. It comes from a manifest beside them, from the model's
config, from the user, or from a convention that has one alone; two that differ are an error.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.files.strict_json import parse_object
from glu_lab.files.tensor_file import FileFormatError
from glu_lab.layouts.checkpoint_manifest import layout_of, read_manifest, spec_of
from glu_lab.layouts.function import attribute, branches_from_config
from glu_lab.layouts.inventory import Tensors
from glu_lab.layouts.layout import Layout, LayoutError, Prefix
from glu_lab.layouts.lookup import layouts_of_model_type
from glu_lab.layouts.measure import infer_spec
from glu_lab.layouts.names import recognise
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.variants import branches_of, variant_name, with_bias

_CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Claims:
    """What stands beside a checkpoint.

    Attributes:
        manifest: its ``manifest.json``.
        config: the model's config.
        config_path: where that came from.
        config_asked: whether the user named it.
    """

    manifest: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    config_path: Path | None
    config_asked: bool


def claims_of(path: Path, config: Path | None = None) -> Claims:
    """Reads the manifest and config of a checkpoint, where there are such.

    Args:
        path: the checkpoint.
        config: a config to read instead of the ``config.json`` in the checkpoint's folder.

    Raises:
        ManifestError: for a damaged manifest.
        FileFormatError: for a config that cannot be read.
    """
    manifest = read_manifest(path)
    beside = path / _CONFIG if path.is_dir() else path.parent / _CONFIG
    training = manifest is not None and "training" in manifest and "checkpoint" not in manifest
    where = config if config is not None else beside
    # A run's config is of the library's own form, and its manifest says all.
    if config is None and (training or not beside.is_file()):
        return Claims(manifest, None, None, False)
    try:
        content = where.read_bytes()
    except OSError as error:
        raise FileFormatError(f"{where} cannot be read: {error.strerror}.") from error
    return Claims(manifest, parse_object(content, str(where)), where, config is not None)


def check_layout(claims: Claims, layout: Layout, names: Collection[str]) -> None:
    """Refuses a layout that the manifest or the config's ``model_type`` contradicts.

    Args:
        claims: what stands beside the tensors.
        layout: as which they are to be read.
        names: of the tensors.

    Raises:
        LayoutError: naming both.
    """
    if claims.manifest is not None:
        stated = layout_of(claims.manifest)
        if stated.name != layout.name:
            raise LayoutError(
                f"the source's manifest says that its tensors lie as {stated.name}; asked for is "
                f"{layout.name}. Leave the source's layout to the manifest, or name {stated.name}."
            )
    model_type = None if claims.config is None else claims.config.get("model_type")
    if not isinstance(model_type, str):
        return
    # The same config may lie beside a file of another form (GGUF), whose names are its own.
    fitting = [
        row.name
        for row in layouts_of_model_type(model_type)
        if any(recognise(row, names, n).named for n in row.branch_counts())
    ]
    if fitting and layout.name not in fitting:
        raise LayoutError(
            f"the config {claims.config_path} is of model_type {model_type!r}, whose tensors lie "
            f"as {' or '.join(fitting)}; asked for is {layout.name}."
        )


def function_of(
    claims: Claims,
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    *,
    variant: str | None = None,
    experts: int | None = None,
    prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
) -> tuple[FFN, str]:
    """The Spec of one FFN of a checkpoint, and who stated its function.

    Args:
        claims: what stands beside it.
        layout: how its tensors lie.
        tensors: by name, or one such mapping a rank; shapes are enough.
        variant: the function that the user states.
        experts: E, for layouts that join the experts with another axis.
        prefixes, leading: as in `take_stock`.

    Raises:
        LayoutError: when nobody states the function (with what it may be), or two differ.
    """
    config = claims.config if _states(claims, layout, variant) else None
    if claims.manifest is not None:
        spec = spec_of(claims.manifest)
        others = {} if variant is None else {"the variant asked for": branches_of(variant)}
        if config is not None:
            others[f"the config {claims.config_path}"] = branches_from_config(layout, config)
        for who, branches in others.items():
            if _sorted(branches) != _sorted(spec.branches):
                product = "*".join(str(branch.activation) for branch in branches)
                raise LayoutError(
                    f"{layout.name}: the manifest states {variant_name(spec)!r}; {who} says "
                    f"{product!r}."
                )
        return spec, "manifest"
    spec = infer_spec(
        layout,
        tensors,
        config=config,
        variant=variant,
        prefixes=prefixes,
        leading=leading,
        experts=experts,
    )
    if config is not None:
        return spec, f"config {claims.config_path}"
    return spec, "user" if variant is not None else f"convention of {layout.name}"


def _states(claims: Claims, layout: Layout, variant: str | None) -> bool:
    """Whether the config is to be asked: one that the user did not name may say nothing."""
    if claims.config is None:
        return False
    if claims.config_asked or layout.function.variant:
        return True
    config = claims.config
    stated = any(attribute(config, rule.attribute) is not None for rule in layout.function.rules)
    return bool(layout.function.rules) and (stated or (variant is None and claims.manifest is None))


def _sorted(branches: Sequence[Branch]) -> list[str]:
    """Branches in an order of their own: a product does not mind theirs."""
    return sorted(map(repr, with_bias(tuple(branches), False)))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Config attributes for people."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
