"""Ways to corrupt the files of a checkpoint."""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
NORM = "model.norm.weight"


@contextmanager
def changed(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a JSON file's content, which is written back afterwards."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


@contextmanager
def changed_header(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the header of the weights, which is written back afterwards."""
    path = folder / WEIGHTS
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    yield header
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def rename_tensor(folder: Path, old: str, new: str) -> None:
    with changed_header(folder) as header:
        header[new] = header.pop(old)


def add_token(folder: Path, number: int) -> None:
    with changed(folder / "tokenizer.json") as content:
        content["model"]["vocab"]["<|evil|>"] = number


def write_number(path: Path, field: str) -> None:
    """Put a number of 5,000 digits into a JSON file."""
    text = path.read_text() if path.exists() else "{}"
    content = json.loads(text) | {field: "PLACE"}
    path.write_text(json.dumps(content).replace('"PLACE"', "9" * 5000))
