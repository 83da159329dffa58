"""Progress and tables in the terminal."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from click._termui_impl import ProgressBar

DAY_SECONDS: Final = 86400.0

_LINE_SECONDS: Final = 10.0
_CLEARED: Final = "\r\x1b[K"
_BAR: Final = "%(label)s  [%(bar)s]  %(info)s"
_BYTES: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


def progress(label: str, total: int, *, done: int = 0) -> "ProgressBar[int]":
    """Return a context manager whose ``update(n)`` shows progress on stderr.

    On a terminal it is a bar, elsewhere lines.

    Args:
        label: names the work.
        total: total number of steps; 0 if that is not known.
        done: steps that were done before.
    """
    kind: type[ProgressBar[int]] = ProgressBar if sys.stderr.isatty() else ProgressLines
    bar = kind(None, total, label=label, show_pos=True, file=sys.stderr, bar_template=_BAR)
    bar.length = total or None
    bar.pos = done
    return bar


@contextmanager
def named_progress(label: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that shows the name of the present work and the steps done so far, on stderr."""
    with progress(label, total) as bar:

        def show(name: str, position: int) -> None:
            bar.label = name
            bar.update(position - bar.pos)
            bar.render_progress()

        yield show


def clear_progress() -> None:
    """Remove a bar on a terminal, so that a line can be written; its next step draws it again."""
    if sys.stderr.isatty():
        click.echo(_CLEARED, nl=False, err=True)


class ProgressLines(ProgressBar[int]):
    """Progress for logs: a line whenever ten seconds have passed since the previous one."""

    _shown_at: float | None = None

    def render_progress(self) -> None:
        """See :class:`click._termui_impl.ProgressBar`."""
        now = time.monotonic()
        if self._shown_at is None:  # the beginning
            self._shown_at = now
        if now - self._shown_at >= _LINE_SECONDS:
            self._shown_at = now
            share = f" of {self.length} ({self.pos / self.length:.0%})" if self.length else ""
            click.echo(f"{self.label}: {self.pos}{share}", file=self.file)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)
) -> str:
    """Format rows as aligned columns under a header; columns numbered in ``left`` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def in_bytes(size: int) -> str:
    """Format a number of bytes in decimal units."""
    for unit, factor in _BYTES:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def ago(seconds: float) -> str:
    """Format the time since a past event in words."""
    for unit, length in (("day", DAY_SECONDS), ("hour", 3600.0), ("minute", 60.0)):
        count = int(seconds / length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
