"""``galley cache``: list and remove packed weights, measured results and stored answers."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.cache_responses import (
    answers_summary,
    list_answers,
    purge,
    rm,
    selection_options,
    show,
    store_option,
)
from galley.cli.cache_tune import tune
from galley.cli.options import Group
from galley.cli.terminal import DAY_SECONDS, ago, in_bytes, table
from galley.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from galley.ops.packed_cache import CachedFile

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)


@click.group("cache", cls=Group)
def cache_group() -> None:
    """List and remove what is kept for later: packed weights, and answers of the response cache."""


for _command in (show, rm, purge, tune):
    cache_group.add_command(_command)


def parse_size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parse ``500MB`` or ``2GB`` into bytes; the callback of an option.

    Raises:
        BadParameter: the text is not a size.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a size such as 500MB or 2GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@cache_group.command("list")
@click.option("--answers", is_flag=True, help="the stored answers instead of packed weights")
@selection_options
@store_option
def list_files(answers: bool, store: str | None, **chosen: Any) -> None:
    """List the packed weights and measured results on disk, or stored answers; last used first."""
    if answers or store is not None or any(chosen.values()):
        list_answers(store, **chosen)
        return
    _list_packed()
    _list_graphs()
    _list_results()
    if (summary := answers_summary()) is not None:
        click.echo(summary)


def _list_packed() -> None:
    folder, files = _files()
    if not files:
        click.echo(f"no packed weights in {folder}")
        return
    rows = []
    for file in files:
        model, kind = file.path.name, file.flaw
        if file.header is not None:
            model, kind = file.header.model, file.header.kind
        rows.append((model, kind, in_bytes(file.size), ago(time.time() - file.used)))
    click.echo(table(("model", "quantization", "size", "last used"), rows, left=(0, 1, 3)))
    click.echo(f"{in_bytes(sum(file.size for file in files))} in {folder}")


def _list_graphs() -> None:
    from galley.runtimes import optimized_graphs

    if graphs := optimized_graphs.stored():
        rows = [(g.source, in_bytes(g.size), ago(time.time() - g.used)) for g in graphs]
        click.echo(table(("optimized graph of", "size", "last used"), rows, left=(0, 2)))


def _list_results() -> None:
    from galley.calibration import store

    results = store.stored()
    if results:
        rows = [(r.what, in_bytes(r.size), ago(time.time() - r.used)) for r in results]
        click.echo(table(("result", "size", "last used"), rows, left=(0, 2)))


@cache_group.command()
@click.option("--all", "everything", is_flag=True, help="remove everything")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="remove what was last used more than this many days ago",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=parse_size,
    help="keep at most this much (500MB, 2GB), the most recently used first",
)
def prune(everything: bool, older_than: float | None, max_size: int | None) -> None:
    """Remove packed weights and optimized graphs that cannot be used any more or that the options select.

    Files that are damaged, of another version, or of a checkpoint that has changed or been deleted can no
    longer be used. A running engine keeps what it has mapped.
    """
    folder, files = _files()
    freed, left = 0, sum(file.size for file in files)
    for file, reason in _unwanted(files, everything, older_than, max_size):
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            click.echo(f"{file.path} cannot be removed: {error.strerror}", err=True)
            continue
        name = file.header.model if file.header else file.path.name
        kind = f" {file.header.kind}" if file.header else ""
        click.echo(f"removed {name}{kind} ({in_bytes(file.size)}): {reason}")
        freed += file.size
        left -= file.size
    from galley.calibration import store
    from galley.ops.packed_cache import forget_measured, tidy

    tidy(folder)  # also removes the references to them
    if everything:
        forget_measured(folder)
    room = None if max_size is None else max_size - left
    freed_of_graphs, left_of_graphs = _prune_graphs(everything, older_than, room)
    freed, left = freed + freed_of_graphs, left + left_of_graphs
    for result in store.stored():
        days = (time.time() - result.used) / DAY_SECONDS
        if everything or (older_than is not None and days > older_than):
            result.path.unlink(missing_ok=True)
            click.echo(f"removed {result.what} ({in_bytes(result.size)})")
            freed += result.size
    click.echo(f"freed {in_bytes(freed)}; {in_bytes(left)} left in {folder}")


def _prune_graphs(everything: bool, older_than: float | None, room: int | None) -> tuple[int, int]:
    """Remove optimized graphs; return the bytes removed, and those that are left.

    Args:
        everything, older_than: the options of ``prune``.
        room: bytes that may be left, the most recently used graphs first; None: any number.
    """
    from galley.runtimes import optimized_graphs

    freed = kept = 0
    for graph in optimized_graphs.stored():
        days = (time.time() - graph.used) / DAY_SECONDS
        gone = not Path(graph.source).exists()
        old = older_than is not None and days > older_than
        if everything or gone or old or (room is not None and kept + graph.size > room):
            try:
                graph.path.unlink(missing_ok=True)
            except OSError as error:
                click.echo(f"{graph.path} cannot be removed: {error.strerror}", err=True)
                continue
            click.echo(f"removed the optimized graph of {graph.source} ({in_bytes(graph.size)})")
            freed += graph.size
        else:
            kept += graph.size
    return freed, kept


def _files() -> "tuple[Path, list[CachedFile]]":
    from galley.ops.choice import executor_factory

    executor_factory("cpu")  # the files belong to it; raises a clear error if it is missing
    from galley.ops.packed_cache import cached_files, tidy
    from galley.ops.packed_files import packed_folder

    try:
        folder = packed_folder()
        tidy(folder)
        return folder, cached_files(folder)
    except OSError as error:
        raise SettingsError(f"the folder of packed weights cannot be read: {error}") from error


def _unwanted(
    files: "Sequence[CachedFile]",
    everything: bool,
    older_than: float | None,
    max_size: int | None,
) -> "Iterator[tuple[CachedFile, str]]":
    """Yield the files to remove, each with the reason; ``files`` are most recently used first."""
    kept = 0
    current = _current(files)
    for file in files:
        days = (time.time() - file.used) / DAY_SECONDS
        if file.header is None:
            yield file, file.flaw
        elif everything:
            yield file, "--all was given"
        elif file.path.name not in current:
            yield file, "the checkpoint has changed or been deleted"
        elif older_than is not None and days > older_than:
            yield file, f"last used {ago(days * DAY_SECONDS)}"
        elif max_size is not None and kept + file.size > max_size:
            yield file, f"--max-size {in_bytes(max_size)} exceeded"
        else:
            kept += file.size


def _current(files: "Sequence[CachedFile]") -> set[str]:
    """Return the names of packed files from which the present checkpoint of a folder can start."""
    from galley.formats.reader import open_checkpoint
    from galley.ops.packed_cache import uses

    current = set()
    for use in uses(files[0].path.parent) if files else []:
        with contextlib.suppress(ModelError):
            if open_checkpoint(Path(use.folder)).state() == use.state:
                current.add(use.file)
    return current
