"""Files for the results of commands: checked before the work, opened, and reported after it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
import msgspec

from galley.errors import RequestError, SettingsError

json_option = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="also write all results to FILE",
)


def check_folders(**files: Path | None) -> None:
    """Raise an error before minutes of work if the folder of a file does not exist.

    Args:
        files: option without dashes -> its file.

    Raises:
        SettingsError: names the option.
    """
    for option, file in files.items():
        if file is not None and not file.parent.is_dir():
            raise SettingsError(f"--{option} {file}: the folder {file.parent} does not exist")


def write_json(file: Path | None, page: object) -> None:
    """Write ``page`` if there is a file for it, and report that on stderr."""
    if file is not None:
        write_text(file, msgspec.json.format(msgspec.json.encode(page), indent=2).decode() + "\n")


def write_text(file: Path | None, text: str) -> None:
    """Write ``text`` if there is a file for it, and report that on stderr."""
    if file is not None:
        file.write_text(text, encoding="utf-8")
        say_written(file)


@contextmanager
def opened(target: Path | None, *, instead: str = "") -> Iterator[IO[str]]:
    """Yield a file to write to; stdout if there is no ``target``.

    Raises:
        RequestError: the file cannot be opened; the message ends with ``instead``, what to do.
    """
    if target is None:
        yield sys.stdout
        return
    try:
        file = target.open("w", encoding="utf-8")
    except OSError as error:
        advice = f"; {instead}" if instead else ""
        raise RequestError(f"cannot write {target}: {error.strerror}{advice}") from error
    with file:
        yield file


def say_written(file: Path) -> None:
    """Report on stderr that a command has written ``file``."""
    click.echo(f"wrote {file}", err=True)
