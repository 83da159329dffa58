"""GGUF files that llama.cpp's converter wrote, of each architecture, against transformers' logits."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from galley.formats.gguf_families import FAMILIES
from galley.formats.reader import open_checkpoint
from tests.formats.peer_files.gguf_models import IDS, VARIANTS
from tests.formats.values import galleys_logits, relative

FOLDER: Final = Path(__file__).parent / "peer_files" / "gguf"


@pytest.mark.parametrize("name", [*VARIANTS, "phi3-longrope-short"])
def test_logits_are_those_of_transformers(name: str) -> None:
    with np.load(FOLDER / "logits.npz") as arrays:
        expected = arrays[name]
    # LongRoPE's frequencies of long texts are those of a model that is asked for long ones.
    settings: dict[str, Any] = {"max_model_len": 64} if name == "phi3-longrope" else {}
    path = FOLDER / f"{name.removesuffix('-short')}.gguf"
    got = galleys_logits(path, IDS[: len(expected)], **settings)
    assert relative(got, expected) <= 1e-4
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))
    assert len(set(expected.argmax(axis=1))) > 5, "a model that says one thing tells little"


def test_all_architectures_have_a_file() -> None:
    """But those that other tests write themselves."""
    read = {GGUFCheckpoint.open(path).metadata.architecture for path in FOLDER.glob("*.gguf")}
    assert read == FAMILIES.keys() - {"qwen2", "qwen3"}
