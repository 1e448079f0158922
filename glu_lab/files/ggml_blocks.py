"""Block quantisations of ggml, decoded to float32.

A row of a quantised tensor is cut into blocks of 32 or 256 neighbouring elements; a block holds
small integers and the scales that they are multiplied by. The layouts are those of the C structs
in ggml (``ggml-common.h``; what they mean: ``dequantize_row_*`` in ``ggml-quants.c``), and so is
the order of the float32 operations, which makes the results equal bit for bit.

Letters in comments: n blocks, and within a block g groups that share a scale.
"""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

_Decoder = Callable[[np.ndarray], np.ndarray]

#: Elements decoded at a time; bounds what decoding needs beside its result.
_PIECE = 1 << 18


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How a GGUF file stores the elements of one tensor.

    Attributes:
        name: ggml's name of the type.
        elements: of a block.
        nbytes: of a block.
        dtype: of the decoded array.
        decode: uint8 blocks (n, nbytes) → float32 (n, elements); None for plain elements.
    """

    name: str
    elements: int
    nbytes: int
    dtype: np.dtype
    decode: _Decoder | None = None


def dequantize(raw: np.ndarray, encoding: Encoding, shape: tuple[int, ...]) -> np.ndarray:
    """Decodes one tensor.

    Args:
        raw: uint8, all blocks of the tensor.
        encoding: with a decoder.
        shape: of the tensor; its last axis holds whole blocks.

    Returns:
        float32 of that shape. Beside it no more than a few megabytes are used.
    """
    assert encoding.decode is not None
    blocks = raw.reshape(-1, encoding.nbytes)
    out = np.empty((len(blocks), encoding.elements), np.float32)
    step = max(1, _PIECE // encoding.elements)
    # A damaged scale may be NaN or infinite; that shows in the result and needs no warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            piece = slice(start, start + step)
            out[piece] = encoding.decode(blocks[piece])
    return out.reshape(shape)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at a byte of each block, as float32 (n, 1)."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low halves of all bytes, then high halves, along the last axis: (…, k) → (…, 2k)."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """32 bits of each block, as 0 or 16: (n, 32)."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little")
    return bits << 4


def _signed(values: np.ndarray, zero: int) -> np.ndarray:
    """Unsigned codes with their zero point taken off, as float32."""
    return (values.astype(np.int16) - zero).astype(np.float32)


def _q4_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _signed(_nibbles(b[:, 2:]), 8)


def _q4_1(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b, 2)


def _q5_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _signed(_nibbles(b[:, 6:]) | _fifth_bits(b, 2), 16)


def _q5_1(b: np.ndarray) -> np.ndarray:
    codes = _nibbles(b[:, 8:]) | _fifth_bits(b, 4)
    return _half(b, 0) * codes.astype(np.float32) + _half(b, 2)


def _q8_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)


def _two_bits(packed: np.ndarray) -> np.ndarray:
    """64 bytes of 2-bit codes in the order of the K types: (n, 16 groups, 16).

    Each half of 32 bytes holds 128 elements: first the lowest bits of all its bytes, and so on.
    """
    halves = packed.reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((halves >> shifts) & 3).reshape(-1, 16, 16)


def _q2_k(b: np.ndarray) -> np.ndarray:
    scales = b[:, :16]
    d, low = _half(b, 80), _half(b, 82)
    scale = (d * (scales & 0xF).astype(np.float32))[..., None]
    offset = (low * (scales >> 4).astype(np.float32))[..., None]
    return (scale * _two_bits(b[:, 16:80]).astype(np.float32) - offset).reshape(-1, 256)


def _q3_k(b: np.ndarray) -> np.ndarray:
    # Sixteen 6-bit scales: eight bytes of low halves, four of high pairs of bits.
    low = _nibbles(b[:, 96:104])
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((b[:, None, 104:108] >> shifts) & 3).reshape(-1, 16)
    scale = (_half(b, 108) * _signed(low | (high << 4), 32))[..., None]
    # Bit i of mask byte l is the third bit of element 32·i + l; a cleared one means −4.
    bits = np.unpackbits(b[:, None, :32], axis=1, bitorder="little").reshape(-1, 16, 16)
    codes = _signed(_two_bits(b[:, 32:96]) | (bits << 2), 4)
    return (scale * codes).reshape(-1, 256)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight offsets of six bits, from 12 bytes: two (n, 8) of float32.

    The first four of each lie whole in the first eight bytes; of the others these bytes keep the
    two highest bits and the last four bytes the rest.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, (third & 0xF) | ((first >> 6) << 4)], axis=-1)
    offset = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scale.astype(np.float32), offset.astype(np.float32)


def _scaled(b: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The common end of the K types with offsets: codes (n, 8 groups, 32)."""
    scales, offsets = _six_bit_pairs(b[:, 4:16])
    scale = (_half(b, 0) * scales)[..., None]
    offset = (_half(b, 2) * offsets)[..., None]
    return (scale * codes.astype(np.float32) - offset).reshape(-1, 256)


def _q4_k(b: np.ndarray) -> np.ndarray:
    return _scaled(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(b: np.ndarray) -> np.ndarray:
    low = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit g of byte l is the fifth bit of element l of group g.
    bits = np.unpackbits(b[:, None, 16:48], axis=1, bitorder="little")
    return _scaled(b, low | (bits << 4))


def _q6_k(b: np.ndarray) -> np.ndarray:
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = _signed(low | (high << 4), 32).reshape(-1, 16, 16)
    scale = (_half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32))[..., None]
    return (scale * codes).reshape(-1, 256)


#: The sixteen unevenly spaced levels of the IQ4 types (``kvalues_iq4nl``).
_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
#: Twice the values of a 4-bit float E2M1.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _iq4_nl(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _LEVELS[_nibbles(b[:, 2:])]


def _iq4_xs(b: np.ndarray) -> np.ndarray:
    low = np.stack([b[:, 4:8] & 0xF, b[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4)
    high = ((b[:, 2:4, None] >> shifts) & 3).reshape(-1, 8)
    scale = (_half(b, 0) * _signed(low | (high << 4), 32))[..., None]
    return (scale * _LEVELS[_nibbles(b[:, 8:].reshape(-1, 8, 16))]).reshape(-1, 256)


def _mxfp4(b: np.ndarray) -> np.ndarray:
    # The scale is a power of two, and the table has the values twice over.
    scale = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128)
    return scale * _E2M1[_nibbles(b[:, 1:])]


_F32 = np.dtype("<f4")


def _plain(name: str, dtype: np.dtype) -> Encoding:
    return Encoding(name, 1, dtype.itemsize, dtype)


#: ggml's number of a type → how it is stored.
ENCODINGS: dict[int, Encoding] = {
    0: _plain("F32", _F32),
    1: _plain("F16", np.dtype("<f2")),
    2: Encoding("Q4_0", 32, 18, _F32, _q4_0),
    3: Encoding("Q4_1", 32, 20, _F32, _q4_1),
    6: Encoding("Q5_0", 32, 22, _F32, _q5_0),
    7: Encoding("Q5_1", 32, 24, _F32, _q5_1),
    8: Encoding("Q8_0", 32, 34, _F32, _q8_0),
    10: Encoding("Q2_K", 256, 84, _F32, _q2_k),
    11: Encoding("Q3_K", 256, 110, _F32, _q3_k),
    12: Encoding("Q4_K", 256, 144, _F32, _q4_k),
    13: Encoding("Q5_K", 256, 176, _F32, _q5_k),
    14: Encoding("Q6_K", 256, 210, _F32, _q6_k),
    20: Encoding("IQ4_NL", 32, 18, _F32, _iq4_nl),
    23: Encoding("IQ4_XS", 256, 136, _F32, _iq4_xs),
    24: _plain("I8", np.dtype(np.int8)),
    25: _plain("I16", np.dtype("<i2")),
    26: _plain("I32", np.dtype("<i4")),
    27: _plain("I64", np.dtype("<i8")),
    28: _plain("F64", np.dtype("<f8")),
    30: _plain("BF16", np.dtype(ml_dtypes.bfloat16)),
    39: Encoding("MXFP4", 32, 17, _F32, _mxfp4),
}

#: Types that exist and are not read, so that they can be refused by name.
UNREAD: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
