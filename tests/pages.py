"""Tables of the documentation, for tests that run what is in their cells."""

import itertools
from pathlib import Path


def rows(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of each row of the table under a heading that begins with code; empty without one.

    Cells that are code alone are returned without its quotes.
    """
    _, _, section = page.read_text(encoding="utf-8").partition(f"# {heading}\n")
    lines = itertools.takewhile(lambda line: not line.startswith("#"), section.splitlines())
    table = [line for line in lines if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in table]
