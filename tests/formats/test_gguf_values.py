"""GGUF's blocks have the values that the gguf package reads, bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as truth

from galley.formats.gguf_blocks import BLOCK_KINDS, CHUNK_VALUES, kind_of, weight_of
from galley.formats.gguf_file import TYPES
from galley.formats.values import dequantize
from galley.formats.weights import IntWeight

PACKED = Path(__file__).parent / "peer_files/gguf-blocks/blocks.npz"


def test_types_are_those_of_the_format() -> None:
    for number, known in TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == known.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (
            known.values,
            known.bytes,
        )


@pytest.mark.parametrize("name", BLOCK_KINDS)
def test_random_blocks(name: str) -> None:
    number = gguf.GGMLQuantizationType[name]
    known = TYPES[number]
    rng = np.random.default_rng(number)
    rows = CHUNK_VALUES // 512 + 7
    data = rng.integers(0, 256, (rows, 512 // known.values * known.bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = truth(data, number).astype(np.float32)
        weight = weight_of("w", known, (rows, 512), data.reshape(-1))
        assert isinstance(weight, IntWeight)
        got = dequantize(weight)
    assert weight.kind == kind_of(name, 512)
    numbers = np.isfinite(expected)
    assert numbers.mean() > 0.5
    assert np.array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("name", [kind for kind in BLOCK_KINDS if kind != "MXFP4"])
def test_what_llama_cpp_packed_has_the_values_that_it_finds_itself(name: str) -> None:
    with np.load(PACKED) as files:
        rows, data, expected = files["rows"], files[name], files[f"{name}-values"]
    weight = weight_of("w", TYPES[gguf.GGMLQuantizationType[name]], rows.shape, data.reshape(-1))
    assert isinstance(weight, IntWeight)
    got = dequantize(weight)
    np.testing.assert_array_equal(got, expected)
    assert np.abs(got - rows).max() > 0  # the rows are not stored unchanged
