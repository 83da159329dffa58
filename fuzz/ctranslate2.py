"""Fuzz target: the ``model.bin`` of a CTranslate2 Whisper folder, up to its typed weights and its program.

An input is that file; the folder's small files stay. A mutation replaces numbers and keeps the length.
"""

import atexit
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from galley.engine.read_model import read_model
from galley.errors import GalleyError
from galley.formats.reader import open_checkpoint
from galley.settings.engine import EngineSettings

MOST_MESSAGE: Final = 4000
"""Characters of the longest sensible error."""

MOST_VALUES: Final = 1 << 20
"""Most values of a tensor that is unpacked."""

VOCABULARY: Final = (
    *"abcdefgh",
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", "<|0.00|>", "<|0.02|>"),
)
TOKENS: Final = (
    *("WhisperSpec", "encoder/conv1/weight", "decoder/embeddings/weight", "decoder/num_heads"),
    *("decoder/layer_0/self_attention/linear_0/weight_scale", "decoder/projection/weight"),
)
_BOUNDS: Final = (0, 1, 2, 3, 4, 5, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)


def fuzz(data: bytes) -> None:
    """Read the folder as an engine does. A refusal must be one short line."""
    folder = _folder()
    (folder / "model.bin").write_bytes(data)
    try:
        open_checkpoint(folder).state()
        model = read_model(EngineSettings(), folder)
        for name in model.weights:
            shape = model.weights.info(name).shape
            if shape[0] * shape[-1] <= MOST_VALUES:
                model.weights[name]
    except GalleyError as error:
        if len(str(error)) > MOST_MESSAGE:
            raise AssertionError(f"an error of {len(str(error))} characters") from error
        str(error).encode()


def mutate(data: bytes, source: random.Random) -> bytes | None:
    """Return the file with some of its numbers replaced; None if it is too short to have any."""
    if len(data) < 64:
        return None
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        size = source.choice((1, 2, 4))
        at = source.randrange(4, len(data) - size)
        old = int.from_bytes(changed[at : at + size], "little")
        new = source.choice((*_BOUNDS, old + 1, old - 1, old ^ 1 << source.randrange(8)))
        changed[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


@cache
def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a separate folder there
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config.json").write_text(json.dumps({"suppress_ids": [], "suppress_ids_begin": []}))
    (folder / "vocabulary.json").write_text(json.dumps(VOCABULARY))
    return folder
