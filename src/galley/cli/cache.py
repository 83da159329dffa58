"""``galley cache``: what packed weights are kept on disk, and away with them."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from galley.errors import GalleyError, ModelError, SettingsError

if TYPE_CHECKING:
    from galley.ops.packed_files import CachedFile, Header

_DAY: Final = 86400.0
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)

cache_app = typer.Typer(
    help="See and remove the packed weights that are kept for fast starts.", no_args_is_help=True
)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 500MB or 2GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@cache_app.command("list")
def list_files() -> None:
    """List the packed weights on disk, last used first."""
    folder, files = _files()
    if not files:
        typer.echo(f"{folder} holds no packed weights")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "quantisation", "size", "last used")
    for file in files:
        age = _age(time.time() - file.used)
        if file.header is None:
            table.add_row(file.path.name, file.flaw, _size(file.size), age)
        else:
            table.add_row(file.header.model, file.header.kind, _size(file.size), age)
    Console().print(table)
    typer.echo(f"{_size(sum(file.size for file in files))} in {folder}")


@cache_app.command()
def prune(
    everything: Annotated[bool, typer.Option("--all", help="remove all packed weights")] = False,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="remove what was last used more days ago"),
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=_parse_size,
            help="keep this much at most (500MB, 2GB), the last used first",
        ),
    ] = None,
) -> None:
    """Remove packed weights that no start can use any more, and what the options say.

    No start can use damaged files, those of another version, and those of checkpoints that have changed
    or gone. A running engine keeps what it has mapped.
    """
    folder, files = _files()
    freed = 0
    for file, reason in _unwanted(files, everything, older_than, max_size):
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            raise GalleyError(f"{file.path} cannot be removed: {error.strerror}") from error
        name = file.header.model if file.header else file.path.name
        kind = f" {file.header.kind}" if file.header else ""
        typer.echo(f"removed {name}{kind} ({_size(file.size)}): {reason}")
        freed += file.size
    left = sum(file.size for file in files) - freed
    typer.echo(f"freed {_size(freed)}; {_size(left)} left in {folder}")


def _files() -> "tuple[Path, list[CachedFile]]":
    from galley.ops.executor import executor_factory

    executor_factory("cpu")  # whose files these are; says what is amiss where it is missing
    from galley.ops.packed_files import cached_files, packed_folder, remove_partial_files

    try:
        folder = packed_folder()
        remove_partial_files(folder)
        return folder, cached_files(folder)
    except OSError as error:
        raise SettingsError(f"the folder of packed weights cannot be read: {error}") from error


def _unwanted(
    files: "Sequence[CachedFile]",
    everything: bool,
    older_than: float | None,
    max_size: int | None,
) -> "Iterator[tuple[CachedFile, str]]":
    """What is to go and why. ``files``: last used first; ``older_than`` in days."""
    kept = 0
    for file in files:
        days = (time.time() - file.used) / _DAY
        if file.header is None:
            yield file, file.flaw
        elif everything:
            yield file, "all were to go"
        elif not _is_current(file.header):
            yield file, "the checkpoint has changed or gone"
        elif older_than is not None and days > older_than:
            yield file, f"last used {_age(days * _DAY)}"
        elif max_size is not None and kept + file.size > max_size:
            yield file, f"{_size(max_size)} are full"
        else:
            kept += file.size


def _is_current(header: "Header") -> bool:
    from galley.formats.checkpoint import Checkpoint

    try:
        return Checkpoint.open(Path(header.folder)).fingerprint() == header.fingerprint
    except ModelError:
        return False


def _size(size: int) -> str:
    """Decimal, as disks are sold."""
    for unit, factor in reversed(_UNITS.items()):
        if size >= factor and factor > 1:
            return f"{size / factor:.1f} {unit}B"
    return f"{size} B"


def _age(seconds: float) -> str:
    for unit, length in (("day", _DAY), ("hour", 3600.0), ("minute", 60.0)):
        count = int(seconds / length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
