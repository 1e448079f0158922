"""Element types by the names that a safetensors header gives them."""

import ml_dtypes
import numpy as np

#: Name in a header → element type; all little-endian. The 4- and 6-bit types of the format are
#: left out: NumPy has no packed array that could show them.
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}

#: Element type → name in a header.
NAMES: dict[np.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

#: Names that the format defines and that are not read here.
PACKED = ("F4", "F6_E2M3", "F6_E3M2")


def is_floating(dtype: np.dtype) -> bool:
    """Whether a type has values that are not finite; true of the types that ml_dtypes adds."""
    return dtype.kind in "fc" or dtype in _EXTRA


_EXTRA = frozenset(
    DTYPES[name] for name in ("BF16", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0")
)
