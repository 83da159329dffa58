"""Fuzz target: a GGUF file, up to its typed weights, its program, its tokenizer and its chat template.

An input is the file. A mutation replaces numbers and keeps the length, so that most inputs are valid in
structure but not in content.
"""

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from galley.engine.read_model import read_model
from galley.errors import GalleyError
from galley.formats.gguf_families import FAMILIES
from galley.formats.gguf_file import TYPES
from galley.formats.gguf_rope import FACTORS
from galley.formats.reader import open_checkpoint
from galley.settings.engine import EngineSettings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer

MOST_MESSAGE: Final = 4000
"""Characters of the longest sensible error."""

MOST_VALUES: Final = 1 << 20
"""Most values of a tensor that is unpacked."""

TOKENS: Final = (
    *("GGUF", *FAMILIES, "gpt2", "gpt-2", "llama-bpe", "none", "linear", "yarn", "longrope"),
    *(
        "\x00\x00\x00\x00\x00\x00\x00\x00",
        "\x08\x00\x00\x00",
        "\x09\x00\x00\x00",
        *FACTORS,
    ),
    *("general.alignment", "general.architecture", "split.count", "llama.expert_count"),
    *("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.bias", "blk.0.attn_sinks.weight"),
    *("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.merges"),
)
_BOUNDS: Final = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def fuzz(data: bytes) -> None:
    """Read the file as an engine and a server do. A refusal must be one short line."""
    path = _folder() / "model.gguf"
    path.write_bytes(data)
    try:
        open_checkpoint(path).state()
        model = read_model(EngineSettings(), path)
        for name in model.weights:
            shape = model.weights.info(name).shape
            if shape[0] * shape[-1] <= MOST_VALUES:
                model.weights[name]
        Tokenizer.load(path).check_vocabulary(model.program.vocab_size, path)
        ChatTemplate.load(path)
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
        size = source.choice((1, 4, 8))
        at = source.randrange(4, len(data) - size)
        old = int.from_bytes(changed[at : at + size], "little")
        new = source.choice((*_BOUNDS, *TYPES, old + 1, old - 1, old ^ 1 << source.randrange(8)))
        changed[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


@cache
def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a separate folder there
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
