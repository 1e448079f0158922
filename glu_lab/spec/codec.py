"""Frozen dataclasses to plain mappings and back, strictly.

`decode` knows no default that the dataclass does not state, and refuses every key that no field
has. `encode` writes every field, so that what is written is what was built.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant, variant_name

T = TypeVar("T")

_hints = functools.cache(typing.get_type_hints)


def encode(value: Any) -> Any:
    """A JSON-ready form of a Spec: mappings, lists, strings, numbers.

    Infinite clamps become the strings ``"inf"`` and ``"-inf"``; JSON has no infinity.
    """
    if isinstance(value, Activation):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode_field(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return value + 0.0  # −0.0 equals 0.0 and is written like it
    return value


def _encode_field(spec: Any, name: str) -> Any:
    """A field's value; an integer in a float field as the float that it equals.

    Equal Specs are thus written equally, and have one hash.
    """
    value = getattr(spec, name)
    if _hints(type(spec))[name] is float and isinstance(value, int):
        value = float(value)
    return encode(value)


def decode(cls: type[T], mapping: Mapping[str, Any], path: str = "") -> T:
    """Builds a dataclass from a mapping.

    Args:
        cls: a frozen dataclass of `glu_lab.spec`.
        mapping: one entry a field; fields with defaults may be left out.
        path: dotted prefix for error messages.

    Returns:
        The validated instance.

    Raises:
        UnknownNameError: for a key that no field has.
        SpecError: for a missing field or a value of the wrong type.
    """
    if not isinstance(mapping, Mapping):
        raise SpecError(f"{path or cls.__name__} must be a mapping, got {mapping!r}.")
    if cls is FFN and "variant" in mapping:
        return typing.cast(T, _decode_variant(mapping, path))
    complete = getattr(cls, "complete_mapping", None)
    if complete is not None:
        mapping = complete(mapping)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    hints = typing.get_type_hints(cls)
    for key in mapping:
        if key not in fields:
            raise UnknownNameError("config key", _join(path, key), [_join(path, f) for f in fields])
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _value(hints[name], mapping[name], _join(path, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SpecError(f"{_join(path, name)} is missing.")
    return cls(**values)


#: Keys that a config may write for an FFN beside its variant.
_VARIANT_KEYS = (
    "variant",
    "bias",
    *(f.name for f in dataclasses.fields(FFN) if f.name != "branches"),
)


def _decode_variant(mapping: Mapping[str, Any], path: str) -> FFN:
    """The short config form: a variant's name instead of the branches."""
    for key in mapping:
        if key not in _VARIANT_KEYS:
            raise UnknownNameError(
                "config key",
                _join(path, key),
                [_join(path, name) for name in _VARIANT_KEYS],
            )
    hints = typing.get_type_hints(FFN)
    fields = {}
    for key, value in mapping.items():
        if key == "variant":
            if not isinstance(value, str):
                raise SpecError(f"{_join(path, key)} must be text, got {value!r}.")
            continue
        hint = bool | None if key == "bias" else hints[key]
        fields[key] = _value(hint, value, _join(path, key))
    for key in ("d_model", "d_ff"):
        if key not in fields:
            raise SpecError(f"{_join(path, key)} is missing.")
    return variant(mapping["variant"], **fields)


def encode_variant(spec: FFN) -> dict[str, Any]:
    """The short config form of an FFN, when its branches can be said by a variant's name.

    Raises:
        SpecError: for branches that only the full form can say.
    """
    name = variant_name(spec)
    biases = {branch.bias for branch in spec.branches}
    if name.startswith("custom:") or len(biases) != 1:
        raise SpecError(f"no variant's name says the branches {spec.branches!r}.")
    short = {key: value for key, value in encode(spec).items() if key != "branches"}
    return {"variant": name, "bias": biases.pop(), **short}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


def _value(hint: Any, value: Any, path: str) -> Any:
    """Checks one value against a type hint, converting only what loses nothing."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        return _value(rest[0], value, path)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            if isinstance(value, str):
                raise UnknownNameError(path, value, [str(choice) for choice in choices])
            raise SpecError(f"{path} must be one of {choices}, got {value!r}.")
        return value
    if origin is tuple:
        arguments = typing.get_args(hint)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SpecError(f"{path} must be a list, got {value!r}.")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], v, f"{path}[{i}]") for i, v in enumerate(value))
        if len(value) != len(arguments):
            raise SpecError(f"{path} must have {len(arguments)} items, got {len(value)}.")
        pairs = zip(arguments, value, strict=True)
        return tuple(_value(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(pairs))
    if hint is Activation:
        return value if isinstance(value, Activation) else Activation.parse(str(value))
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type[Any], hint)
        return value if isinstance(value, kind) else decode(kind, value, path)
    if hint is bool:
        if not isinstance(value, bool):
            raise SpecError(f"{path} must be true or false, got {value!r}.")
        return value
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SpecError(f"{path} must be an integer, got {value!r}.")
        return value
    if hint is float:
        if value in ("inf", "-inf"):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{path} must be a number, got {value!r}.")
        if math.isnan(value):
            raise SpecError(f"{path} must be a number, got NaN.")
        return float(value)
    if hint is str:
        if not isinstance(value, str):
            raise SpecError(f"{path} must be text, got {value!r}.")
        return value
    raise TypeError(f"{path}: no rule for {hint!r}")
