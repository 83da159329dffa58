"""A process that writes blocks until it is killed, and reports each one."""

import sys
from itertools import count
from pathlib import Path

import numpy as np

from galley.engine.block_form import Block, BlockForm
from galley.engine.prefix_files import PrefixFiles

SIZE = 1 << 16


def files_in(folder: Path) -> PrefixFiles:
    """Return the files that the process writes."""
    form = BlockForm(b"m" * 16, kv_dtype="float32", block_bytes=(SIZE,))
    return PrefixFiles(folder, form, most_bytes=1 << 40)


def block(number: int) -> Block:
    """Return the block that is written as this number."""
    return Block(number.to_bytes(16, "big"), 0, b"root")


if __name__ == "__main__":
    files = files_in(Path(sys.argv[1]))
    for number in count(int(sys.argv[2])):
        files.write(block(number), np.full(SIZE, number % 251, dtype=np.uint8))
        print(number, flush=True)
