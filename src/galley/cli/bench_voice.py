"""``galley bench voice``: how soon a conversation over ``/v1/realtime`` answers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import Command
from galley.cli.report import check_folders, json_option, write_json
from galley.cli.terminal import table
from galley.errors import GalleyError

if TYPE_CHECKING:
    from galley.bench.voice import Turn

_OTHERS: Final = ("silence", "total", "interruption")


@click.command(
    "voice",
    cls=Command,
    examples=(
        "galley bench voice question.wav --model chat --callers 4",
        "galley bench voice turns/*.wav --model chat --eagerness auto",
    ),
)
@click.argument(
    "recordings",
    metavar="RECORDING...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="what callers say: each is one turn, which ends with the recording",
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
    default=None,
    help="turns of each caller; default: 10, or each recording once if there are several",
)
@click.option(
    "--eagerness",
    type=click.Choice(("low", "medium", "high", "auto")),
    default=None,
    help="turns end by semantic_vad of this eagerness; default: server_vad",
)
@click.option(
    "--interrupt",
    is_flag=True,
    help="begin each turn during the previous answer, and measure how soon that answer stops",
)
@json_option
def voice(
    recordings: tuple[Path, ...],
    url: str,
    model: str,
    api_key: str,
    callers: int,
    turns: int | None,
    eagerness: str | None,
    interrupt: bool,
    json_file: Path | None,
) -> None:
    """Measure the time from the end of speech to the first audio of an answer, and what it waits for.

    Callers speak the recordings at their own pace, in turn, and wait for the end of an answer before they
    speak again, or interrupt it. A turn that the server ends before the recording does is a cut-off.
    Times of the parts are those of the server, from the end of speech; they overlap. With --eagerness,
    "silence" is how long the model let the silence last before a turn ended: 0 if it was sure.
    """
    check_folders(json=json_file)
    from galley.bench.voice import Call, converse, read_recording

    detection: dict[str, Any] = {"type": "server_vad"}
    if eagerness is not None:
        detection = {"type": "semantic_vad", "eagerness": eagerness}
    call = Call(
        url=url.rstrip("/"),
        model=model,
        key=api_key,
        recordings=[read_recording(path) for path in recordings],
        turns=turns or (10 if len(recordings) == 1 else len(recordings)),
        detection=detection,
        interrupts=interrupt,
    )
    try:
        done = asyncio.run(converse(call, callers))
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if isinstance(first, GalleyError):
            raise first from None
        raise
    _show(done, callers, interrupts=interrupt)
    turns_done = _turns(done, recordings)
    write_json(json_file, {"turns": turns_done, "callers": callers, "turn_detection": detection})


def _show(done: "list[Turn]", callers: int, *, interrupts: bool) -> None:
    """Print the quantiles of each part of the turns that were not cut off, and how many were."""
    from galley.bench.serve.measure import quantiles_of
    from galley.bench.voice import PARTS

    whole = [turn for turn in done if not turn.cut_offs]
    columns = [[turn.parts[n] for turn in whole] for n in range(len(PARTS))]
    columns.append([turn.silence for turn in whole])
    columns.append([turn.total for turn in whole])
    columns.append([turn.interruption for turn in done if interrupts])
    rows = []
    for name, column in zip([*PARTS, *_OTHERS], columns, strict=True):
        if found := quantiles_of([1000 * seconds for seconds in column if seconds is not None]):
            rows.append((name, *(f"{ms:.0f}" for ms in (found.p50, found.p95, found.p99))))
    heading = f"{len(whole)} turns of {callers} callers, ms"
    print(table((heading, "P50", "P95", "P99"), rows))
    cut = len(done) - len(whole)
    print(f"{cut} of {len(done)} turns were cut off ({100 * cut / len(done):.1f} %)")


def _turns(done: "list[Turn]", recordings: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the turns as the file has them; times in seconds."""
    from galley.bench.voice import PARTS

    return [
        {
            "recording": str(recordings[turn.recording]),
            "cut_offs": turn.cut_offs,
            **dict(zip(PARTS, turn.parts, strict=True)),
            "silence": turn.silence,
            "total": turn.total,
            "interruption": turn.interruption,
        }
        for turn in done
    ]
