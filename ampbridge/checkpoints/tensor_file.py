"""The form of a safetensors file: the header's length, a header in JSON, the arrays' bytes.

It is put together here, rather than by ``safetensors`` itself, because that writes under a name of its
own, which stays if the process is killed, and copies every array to give bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ampbridge.errors import UnsupportedError

Array = npt.NDArray[Any]

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip


def parts(tensors: Mapping[str, Array]) -> list[bytes | memoryview]:
    """The file of ``tensors`` in pieces, to be written one after the other. Arrays are not copied."""
    # The widest first, so that each begins at a multiple of its own size.
    arrays = {
        name: np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    }
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            msg = f"A checkpoint cannot hold {name!r}, whose dtype is {array.dtype.name}.\n"
            raise UnsupportedError(msg + f"Hint: allowed are {', '.join(_DTYPES)}.")
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    buffers = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    return [len(text).to_bytes(8, "little"), text, *buffers]
