"""``galley replay``: send a recorded trace to a server, or to two."""

import asyncio
import contextlib
import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from galley import __version__
from galley.cli.options import ABOVE_ZERO, Command
from galley.cli.report import check_folders, write_json, write_text
from galley.cli.terminal import progress, table
from galley.errors import EngineError, SettingsError

if TYPE_CHECKING:
    from galley.bench.serve.replay import RecordedTexts
    from galley.bench.serve.results import Report
    from galley.traffic.trace import Turn

_PATH = click.Path(path_type=Path)
_COMPARED_TEXTS = 64
"""Most recorded answers on which two servers are compared."""


@click.command(
    "replay",
    cls=Command,
    examples=(
        "galley replay record http://127.0.0.1:8000",
        "galley replay trace.jsonl http://127.0.0.1:8000 --speed 2 --against http://127.0.0.1:8001",
        "galley replay record --write mooncake.jsonl",
    ),
)
@click.argument("trace", type=click.Path(exists=True, path_type=Path))
@click.argument("url", required=False)
@click.option(
    "--speed", type=ABOVE_ZERO, default=1.0, show_default=True, help="times as fast as recorded"
)
@click.option(
    "--against",
    metavar="URL",
    help="then send the trace to this server, and compare; with --texts, also the predictions of recorded "
    "answers",
)
@click.option("--model", help="served model; default: the first of /v1/models")
@click.option("--api-key", envvar="GALLEY_API_KEY", show_envvar=True, help="sent as bearer token")
@click.option(
    "--timeout", type=ABOVE_ZERO, default=600.0, show_default=True, help="seconds for one request"
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help="send only this many, from the start of the trace",
)
@click.option(
    "--unit",
    type=click.Choice(["auto", "ms", "s"]),
    default="auto",
    show_default=True,
    help="unit of the trace's times; auto: ms if it has hash_ids or session_id, else s",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="seed of synthetic texts",
)
@click.option(
    "--texts",
    metavar="KEYFILE",
    type=_PATH,
    help="send the recorded prompts, which record_texts encrypted with this key; default: synthetic ones",
)
@click.option("--slo", metavar="M=T,...", default="", help="for goodput: ttft=1s,tpot=50ms")
@click.option(
    "--price-per-hour", type=ABOVE_ZERO, help="price of the server's machine, to compute the cost"
)
@click.option(
    "--json", "json_file", type=_PATH, metavar="FILE", help="also write all figures to FILE"
)
@click.option("--html", "html_file", type=_PATH, metavar="FILE", help="write a report with curves")
@click.option(
    "--write",
    "write_file",
    type=_PATH,
    metavar="FILE",
    help="write the trace to FILE in Mooncake's format",
)
@click.option("--sessions", is_flag=True, help="with --write: also write AIPerf's session_id")
def replay(trace: Path, url: str | None, against: str | None, **options: Any) -> None:
    """Send recorded requests to a server at their recorded times.

    TRACE is the folder of galley serve --record, or a JSONL file of Mooncake, AIPerf or GuideLLM. A turn
    of a session waits for the one before it. Texts are synthetic, unless --texts is given; they have the
    recorded lengths and share the recorded prefixes.
    """
    from galley.traffic.trace import as_mooncake, read_trace

    json_file, html_file, write_file = (
        options[name] for name in ("json_file", "html_file", "write_file")
    )
    check_folders(json=json_file, html=html_file, write=write_file)
    if url is None and (against is not None or write_file is None):
        raise SettingsError("give the URL of a server, or --write FILE")
    if options["sessions"] and write_file is None:
        raise SettingsError("--sessions needs --write")
    if options["texts"] is not None and url is None:
        raise SettingsError("--texts needs the URL of a server; --write never writes texts")
    turns = read_trace(trace, options["unit"])[: options["requests"]]
    if write_file is not None:
        lines = as_mooncake(turns, sessions=options["sessions"])
        write_text(write_file, b"".join(lines).decode())
    if url is None:
        return
    recorded = _recorded(turns, options["texts"])
    reports = [
        (place, _measure(place, trace, turns, options, recorded))
        for place in (url, against)
        if place
    ]
    if against is not None and recorded is not None:
        reports[-1] = against, _with_fidelity(reports, options, recorded)
    _print(reports, turns)
    write_json(json_file, reports[-1][1])
    if html_file is not None:
        from galley.bench.serve.page import page

        write_text(html_file, page(reports))


def _recorded(turns: "list[Turn]", key: Path | None) -> "RecordedTexts | None":
    from galley.bench.serve.replay import RecordedTexts
    from galley.traffic.texts import TextCipher

    return None if key is None else RecordedTexts(turns, TextCipher(key, "--texts"))


def _with_fidelity(
    reports: "list[tuple[str, Report]]", options: dict[str, Any], recorded: "RecordedTexts"
) -> "Report":
    """Compare both servers' predictions of the recorded answers; return the second's report with that."""
    import msgspec

    from galley.bench.serve.client import CallFailed, Client
    from galley.bench.serve.fidelity import Fidelity, compare_texts

    (first, before), (second, after) = reports
    texts = recorded.answered(_COMPARED_TEXTS)
    if not texts:
        return after

    async def run() -> Fidelity:
        with contextlib.ExitStack() as stack:
            one, other = (
                stack.enter_context(
                    contextlib.closing(
                        Client(url, api_key=options["api_key"], timeout=options["timeout"])
                    )
                )
                for url in (first, second)
            )
            bar = stack.enter_context(progress("quality", len(texts)))
            models = before.model, after.model
            return await compare_texts((one, other), models, texts, lambda: bar.update(1))

    try:
        return msgspec.structs.replace(after, fidelity=asyncio.run(run()))
    except (CallFailed, EngineError) as error:
        # The figures of both replays are worth more than this one.
        click.echo(f"quality is not compared: {error}", err=True)
        return after


def _measure(
    url: str,
    trace: Path,
    turns: "list[Turn]",
    options: dict[str, Any],
    recorded: "RecordedTexts | None",
) -> "Report":
    from galley.bench.serve.client import CallFailed, Client
    from galley.bench.serve.objective import parse_objective
    from galley.bench.serve.replay import replay as replayed
    from galley.bench.serve.results import Report
    from galley.machine import cpu_and_cores, raise_open_files

    raise_open_files()
    started = datetime.datetime.now(datetime.UTC)
    objective = parse_objective(options["slo"])

    async def run() -> "Report":
        client = Client(url, api_key=options["api_key"], timeout=options["timeout"])
        with progress("replay", len(turns)) as bar, contextlib.closing(client):
            model, point, _ = await replayed(
                client,
                turns,
                speed=options["speed"],
                model=options["model"],
                seed=options["seed"],
                objective=objective,
                price_per_hour=options["price_per_hour"],
                on_end=lambda: bar.update(1),
                texts=recorded,
            )
        return Report(
            galley=__version__,
            started=started.isoformat(timespec="seconds"),
            target=url,
            model=model,
            workload={"trace": str(trace), "speed": f"{options['speed']:g}"},
            objective=objective,
            price_per_hour=options["price_per_hour"],
            client=cpu_and_cores(),
            points=[point],
        )

    try:
        return asyncio.run(run())
    except CallFailed as error:
        raise EngineError(f"{url} cannot be measured: {error}") from error


def _print(reports: "list[tuple[str, Report]]", turns: "list[Turn]") -> None:
    from galley.bench.serve.compare import compared, comparison_rows, fidelity_text
    from galley.bench.serve.replay import recorded_share

    points = [report.points[0] for _, report in reports]
    click.echo(table(("", *(name for name, _ in reports)), comparison_rows(points)))
    share = recorded_share(turns)
    if share is not None:
        click.echo(f"prompt tokens cached when recorded: {share:.0%}")
    fidelity = reports[-1][1].fidelity
    if fidelity is not None:
        click.echo(f"quality of {reports[-1][0]}: {fidelity_text(fidelity)}")
    for (name, _), point in zip(reports, points, strict=True):
        for kind, count in point.errors.items():
            click.echo(f"{name}: {count} x {kind}: {point.details[kind]}")
    if len(reports) == 2 and math.isclose(points[0].load, points[1].load):
        header = ("load", "figure", *(name for name, _ in reports), "ratio")
        click.echo(table(header, compared(reports[0][1], reports[1][1]), left=(0, 1)))
