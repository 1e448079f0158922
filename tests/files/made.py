"""Tensor files of a few bytes, made by hand, so that tests can damage any part of them."""

import json
import struct


def safetensors_bytes(header, data=b"", length=None):
    """A file from a header (dict, or its text) and data; `length` lies about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, value):
    """A GGUF key–value pair; value is bytes as they stand in the file."""
    return text(key) + struct.pack("<I", kind) + value


def listing(kind, count, items):
    return struct.pack("<IQ", kind, count) + items


def gguf_info(name, extents, kind, offset):
    return (
        text(name)
        + struct.pack("<I", len(extents))
        + b"".join(struct.pack("<Q", n) for n in extents)
        + struct.pack("<IQ", kind, offset)
    )


def gguf_bytes(pairs=(), infos=(), data=b"", *, version=3, tensors=None, keys=None, align=32):
    """A GGUF file; `tensors` and `keys` lie about the counts."""
    head = b"GGUF" + struct.pack("<I", version)
    head += struct.pack(
        "<QQ", len(infos) if tensors is None else tensors, len(pairs) if keys is None else keys
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + b"\0" * (-len(head) % align) + data
