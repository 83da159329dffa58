"""Fuzz target: the files of a checkpoint, up to its typed weights, its program, its tokenizer and template.

An input is a JSON object: file name -> its content as JSON, or as text where it is a string. The weights
are ``header``, the JSON in front of them; the bytes behind are zeros, as many as its offsets say. An input
that is not JSON replaces one file of the first checkpoint of the corpus: its first byte selects which.
"""

import atexit
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from galley.engine.read_model import read_model
from galley.errors import GalleyError
from galley.formats.reader import open_checkpoint
from galley.settings.engine import EngineSettings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer

MOST_MESSAGE: Final = 4000
"""Characters of the longest sensible error."""

MOST_DATA: Final = 1 << 20
"""Most bytes after a header."""

HEADER: Final = "header"
WEIGHTS: Final = "model.safetensors"
FILES: Final = (
    "config.json",
    HEADER,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
)
_CORPUS: Final = Path(__file__).parent / "corpus" / "checkpoint"


def fuzz(data: bytes) -> None:
    """Read the checkpoint as an engine and a server do. A refusal must be one short line."""
    folder = _folder()
    for path in folder.iterdir():
        path.unlink()
    for name, content in _files(data).items():
        _write(folder, name, content)
    try:
        checkpoint = open_checkpoint(folder)
        checkpoint.state()
        model = read_model(EngineSettings(), folder)
        if (folder / "tokenizer.json").exists():
            Tokenizer.load(folder).check_vocabulary(model.program.vocab_size, folder)
        ChatTemplate.load(folder)
    except GalleyError as error:
        if len(str(error)) > MOST_MESSAGE:
            raise AssertionError(f"an error of {len(str(error))} characters") from error
        str(error).encode()


def mutate(data: bytes, source: random.Random) -> bytes | None:
    """Return the checkpoint with a value of a file replaced, removed or renamed; None if it is not one."""
    try:
        files = json.loads(data)
        for _ in range(source.choice((1, 1, 1, 2, 3))):
            holder, key = source.choice(list(_places(files)))
            match source.randrange(6):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, dict):
                    holder[source.choice(_words())] = holder.pop(key)
                case 2 if isinstance(holder, dict):
                    holder[source.choice(_words())] = source.choice(_VALUES)
                case 3 if type(holder[key]) is int:
                    holder[key] += source.choice((-1, 1, 2, 4, -holder[key], 10**6))
                case _:
                    holder[key] = source.choice((*_VALUES, *_words()))
        return json.dumps(files).encode()
    except (ValueError, IndexError, TypeError, RecursionError):
        return None


def _files(data: bytes) -> dict[str, Any]:
    try:
        files = json.loads(data)
        if isinstance(files, dict):
            return {name: files[name] for name in FILES if name in files}
    except (ValueError, RecursionError):
        pass
    if not data:
        return {}
    return {**_first(), FILES[data[0] % len(FILES)]: data[1:]}


def _write(folder: Path, name: str, content: Any) -> None:
    if isinstance(content, bytes):
        text = content
    elif isinstance(content, str):
        text = content.encode("utf-8", "surrogatepass")
    else:
        text = json.dumps(content).encode()
    if name != HEADER:
        (folder / name).write_bytes(text)
        return
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + _data_bytes(content))


def _data_bytes(header: Any) -> int:
    entries = header.values() if isinstance(header, dict) else ()
    offsets = [entry.get("data_offsets") for entry in entries if isinstance(entry, dict)]
    ends = [pair[-1] for pair in offsets if isinstance(pair, list) and pair]
    return max((end for end in ends if type(end) is int and 0 <= end <= MOST_DATA), default=0)


@cache
def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a separate folder there
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _first() -> dict[str, Any]:
    path = min(path for path in _CORPUS.iterdir() if path.is_file())
    files: dict[str, Any] = json.loads(path.read_bytes())
    return files


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a JSON value with each of its keys or indices."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


@cache
def _words() -> tuple[str, ...]:
    """Return the keys and texts of the corpus."""
    words: set[str] = set()
    for path in sorted(_CORPUS.iterdir()):
        if not path.read_bytes().startswith(b"{"):
            continue
        for holder, key in _places(json.loads(path.read_bytes())):
            words |= {word for word in (key, holder[key]) if isinstance(word, str)}
    return tuple(sorted(word for word in words if len(word) < 60))


_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**18, 10**30, -(2**70), 0.5, -0.0),
    *(1e-320, 1e308, float("inf"), float("nan"), "", "0", "../x", "x\x00.safetensors", "\ud800"),
    *("x" * 3000, [], {}, [[]], [{}], {"": 0}, [0, 10**30], [[0, 0]], {"content": "<|end|>"}),
    *({"rope_type": kind, "factor": 4.0} for kind in ("linear", "llama3", "yarn", "default")),
)

TOKENS: Final = (*_words(), "null", "true", "NaN", "1e400", "\\ud800", "\\u0000", "{}", "[]")
