"""Makes `gguf-blocks/`: rows that llama.cpp's quantizer packed, and the values that it finds in them.

xllamacpp carries llama.cpp as a library; its functions are called as `ggml.h` declares them.
"""

import ctypes
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

KINDS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS"),
)
ROWS, COLUMNS = 4, 512

Floats = ctypes.POINTER(ctypes.c_float)


class TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits`."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, Floats, ctypes.c_int64)),
    ]


def library() -> ctypes.CDLL:
    """Return llama.cpp's functions."""
    [path] = Path(xllamacpp.__file__).parent.glob("*.so")
    ggml = ctypes.CDLL(str(path))
    counts = [ctypes.c_int64] * 3
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, Floats, ctypes.c_void_p, *counts, Floats]
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
    return ggml


def main() -> None:
    """Write all kinds into a folder."""
    ggml = library()
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((ROWS, COLUMNS), np.float32)
    rows[1] *= np.float32(1e-3)  # small scales
    rows[2, ::64] = 40  # outliers
    rows[3, 256:512] = 0
    arrays = {"rows": rows}
    for name in KINDS:
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((ROWS, COLUMNS // values * size), np.uint8)
        source = rows.ctypes.data_as(Floats)
        written = ggml.ggml_quantize_chunk(kind, source, data.ctypes.data, 0, ROWS, COLUMNS, None)
        assert written == data.nbytes, name
        found = np.empty_like(rows)
        to_float = ggml.ggml_get_type_traits(kind)[0].to_float
        to_float(data.ctypes.data, found.ctypes.data_as(Floats), rows.size)
        arrays |= {name: data, f"{name}-values": found}
    folder = Path(sys.argv[1]) / "gguf-blocks"
    folder.mkdir()
    np.savez_compressed(folder / "blocks.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
