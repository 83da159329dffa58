"""Embedding models on the GPU executor: the reference executor's vectors, the same bits in any batch."""

from pathlib import Path

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE

from tests.embedding.checkpoints import make_model
from tests.embedding.running import loaded, vectors_of

PROMPTS = [[(7 * i + n) % 100 + 1 for i in range(n)] for n in (1, 37, 5)]


@pytest.mark.parametrize("variant", ["bert", "modernbert", "qwen3"])
def test_vectors_are_those_of_the_reference_executor(variant: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / variant, variant, pooling="mean_tokens")
    made = loaded(folder, executor="gpu", device=DEVICE, dtype="float32")
    got = vectors_of(made, PROMPTS)
    for vector, wanted in zip(
        got, vectors_of(loaded(folder, executor="reference"), PROMPTS), strict=True
    ):
        assert np.abs(vector - wanted).max() < 1e-5
    assert np.array_equal(vectors_of(made, PROMPTS[1:2])[0], got[1])
