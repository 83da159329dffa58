"""Progress bars and tables in the terminal."""

import sys
from collections.abc import Collection, Sequence

import click
from click._termui_impl import ProgressBar


def progress(label: str, total: int, *, done: int = 0) -> "ProgressBar[int]":
    """A context manager whose ``update(n)`` moves a bar on stderr, if that is a terminal."""
    bar = click.progressbar(
        length=total,
        label=label,
        show_pos=True,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    )
    bar.pos = done
    return bar


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)
) -> str:
    """Rows as aligned columns under a header; columns numbered in ``left`` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])
