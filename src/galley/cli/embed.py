"""``galley embed``: texts to vectors, with the engine in this process."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.report import opened, say_written
from galley.cli.terminal import progress
from galley.errors import RequestError, SettingsError
from galley.formats.source import BUNDLED_EMBED
from galley.settings.engine import EngineSettings

_TOGETHER: Final = 256
"""Texts in one batch, whose vectors are written before the next is read."""


@click.command(cls=Command)
@with_flags(EngineSettings, model=True)
@click.argument("texts", nargs=-1)
@click.option(
    "--file",
    type=click.Path(path_type=Path, allow_dash=True),
    help='one text per line, or JSON lines with "text" (or "input") if the name ends in .jsonl; - is the '
    "standard input",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="write the vectors to this file; default: print them",
)
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    help="keep this many leading dimensions of each vector",
)
@click.option(
    "--prompt-name",
    help='name of one of the model\'s prompts to prepend to each text, such as "query"',
)
@click.option("--truncate", is_flag=True, help="cut texts to the model's context")
def embed(
    flags: Flags,
    texts: Sequence[str],
    file: Path | None,
    output: Path | None,
    **wanted: Any,
) -> None:
    """Compute the embeddings of TEXTS, or of the texts in a file.

    Prints a line of JSON for each text, in order: {"index": 0, "text": "...", "embedding": [...]}. The
    default model is galley-demo-embed, which is in Galley's source tree, but not in its wheel.
    """
    if bool(texts) == (file is not None):
        raise SettingsError("give texts, or --file FILE with one text per line")
    settings = flags.settings()
    settings = dataclasses.replace(settings, model=settings.model or BUNDLED_EMBED)
    start_logging(settings)
    from galley.llm.llm import LLM

    given = iter(texts) if file is None else _read(file)
    index = 0
    with (
        LLM.from_settings(settings) as llm,
        progress("embedding", len(texts)) as bar,
        opened(output) as target,
    ):
        while batch := list(islice(given, _TOGETHER)):
            for text, vector in zip(batch, llm.embed(batch, **wanted), strict=True):
                line = {"index": index, "text": text, "embedding": vector.tolist()}
                target.write(msgspec.json.encode(line).decode() + "\n")
                index += 1
            target.flush()
            bar.update(len(batch))
    if not index:
        raise RequestError(f"{file} contains no text")
    if output is not None:
        say_written(output)


def _read(file: Path) -> Iterator[str]:
    """Yield the texts of a file.

    Raises:
        RequestError: a line is not a text; the message names it.
    """
    try:
        with _lines(file) as lines:
            for number, line in enumerate(lines, start=1):
                text = line.rstrip("\r\n")
                if text.strip():
                    yield _text_of(text, number, file) if file.suffix == ".jsonl" else text
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {file}: {error}") from error


def _text_of(line: str, number: int, file: Path) -> str:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{file}, line {number}: {error}") from error
    if isinstance(found, dict):
        found = found.get("text", found.get("input"))
    if not isinstance(found, str) or not found:
        raise RequestError(f'{file}, line {number}: "text" is missing or empty')
    return found


@contextmanager
def _lines(file: Path) -> Iterator[Iterable[str]]:
    if file == Path("-"):
        yield sys.stdin
        return
    with file.open(encoding="utf-8") as lines:
        yield lines
