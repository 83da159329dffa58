"""The benchmarks of single layers run, on tiny sizes."""

import pytest
from benchmarks import attention, linear


@pytest.mark.parametrize("kind", ["int4:32", "int8", "int8/float32", "Q4_K"])
def test_linear(kind: str) -> None:
    seconds, size = linear.layer_seconds(kind, outputs=32, depth=256, rows=2, threads=1)
    assert seconds > 0
    assert size >= 32 * 256 / 2


def test_attention() -> None:
    seconds, size = attention.layer_seconds("int8", (4, 2, 16), 64, batch=2, rows=1, threads=1)
    assert seconds > 0
    assert size > 0
