"""``galley bench voice``: how soon a conversation over ``/v1/realtime`` answers."""

import asyncio
from pathlib import Path

import click

from galley.cli.options import Command
from galley.cli.report import check_folders, json_option, write_json
from galley.cli.terminal import table
from galley.errors import GalleyError


@click.command(
    "voice",
    cls=Command,
    examples=("galley bench voice question.wav --model chat --callers 4",),
)
@click.argument(
    "recording",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="what callers say: a sentence without long pauses",
)
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="the server")
@click.option("--model", required=True, help="name of the language model on the server")
@click.option("--api-key", default="", help="key, if the server requires one")
@click.option(
    "--callers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="callers at the same time",
)
@click.option(
    "--turns",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="turns of each caller",
)
@json_option
def voice(
    recording: Path,
    url: str,
    model: str,
    api_key: str,
    callers: int,
    turns: int,
    json_file: Path | None,
) -> None:
    """Measure the time from the end of speech to the first audio of an answer, and its parts.

    Callers speak RECORDING at its own pace and wait for the end of the answer before they speak again.
    """
    check_folders(json=json_file)
    from galley.bench.voice import PARTS, Call, converse, quantile, read_recording

    call = Call(
        url=url.rstrip("/"),
        model=model,
        key=api_key,
        samples=read_recording(recording),
        turns=turns,
    )
    try:
        done = asyncio.run(converse(call, callers))
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if isinstance(first, GalleyError):
            raise first from None
        raise
    columns = [*zip(*(turn.parts for turn in done), strict=True), [turn.total for turn in done]]
    rows = [
        (name, *(f"{1000 * quantile(times, share):.0f}" for share in (0.5, 0.95, 0.99)))
        for name, times in zip([*PARTS, "total"], columns, strict=True)
    ]
    heading = f"{len(done)} turns of {callers} callers, ms"
    print(table((heading, "P50", "P95", "P99"), rows))
    turns_done = [dict(zip(PARTS, turn.parts, strict=True)) for turn in done]
    write_json(json_file, {"turns": turns_done, "callers": callers})
