"""A tokenizer whose work takes far more memory than its texts."""

import json
from pathlib import Path

from tests.checkpoints import make_tokenizer


def make_exploding_tokenizer(folder: Path) -> None:
    """Write a tokenizer that makes a hundred megabytes of "§", and of its token."""
    make_tokenizer(folder)
    path = folder / "tokenizer.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    grow = {"type": "Replace", "pattern": {"String": "§"}, "content": "§" * 10}
    file["normalizer"] = {"type": "Sequence", "normalizers": [grow] * 8}
    begin = {"type": "Replace", "pattern": {"String": "a"}, "content": "§"}
    file["decoder"] = {"type": "Sequence", "decoders": [begin, *[grow] * 8]}
    path.write_text(json.dumps(file), encoding="utf-8")
