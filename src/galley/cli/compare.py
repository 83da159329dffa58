"""``galley compare``: engines on one model, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.bench_serve import json_object, numbers
from galley.cli.options import Command
from galley.cli.report import check_folders, write_json, write_text
from galley.cli.terminal import named_progress, table
from galley.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from galley.bench.serve.workload import Endpoint, Workload
    from galley.quality.contenders import Comparison, Entry
    from galley.speech.evaluate import ManifestEntry

_PATH: Final = click.Path(path_type=Path)
_FIRST_LINE: Final = 1 << 16
"""Bytes by which the kind of a file of data is found."""
_OF_TRANSCRIPTS: Final = frozenset({"response_format", "stream"})
"""Fields of requests that decide whether an answer has the words and the length of a recording."""


@click.command(
    cls=Command,
    examples=(
        "galley compare model.gguf --engines native,openvino,llama.cpp --html report.html",
        "galley compare whisper-folder --engines native,ctranslate2 --data recordings.jsonl",
        "galley compare org/name --engines native,openvino=exported-folder --data requests.jsonl",
    ),
)
@click.argument("model", help="a folder, file or hub id; what galley serve takes")
@click.argument(
    "serve_flags",
    nargs=-1,
    metavar="[-- FLAGS]",
    type=click.UNPROCESSED,
    help="flags of galley serve, for every engine",
)
@click.option(
    "--engines",
    metavar="E,E,...",
    default="native,openvino,llama.cpp",
    show_default=True,
    help="engines to compare; ENGINE=MODEL serves another file or folder with it",
)
@click.option(
    "--engine-options",
    metavar="ENGINE=JSON",
    multiple=True,
    help="--engine-options of one engine; repeat for several",
)
@click.option(
    "--against",
    metavar="MODEL",
    help="checkpoint to compare with in float32; default: MODEL itself",
)
@click.option("--loss/--no-loss", default=True, help="measure the loss; default: yes")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="JSONL of prompts (prompt or messages, output_tokens), or of recordings (audio, and text: what is "
    "said); default: synthetic prompts",
)
@click.option(
    "--body", metavar="JSON", default="{}", help='further fields of requests: {"language": "en"}'
)
@click.option("--concurrency", metavar="N,N,...", default="1,8,32", show_default=True)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="requests of each run",
)
@click.option("--prompt-tokens", metavar="LENGTH", default="128", show_default=True)
@click.option("--output-tokens", metavar="LENGTH", default="64", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--json", "json_file", type=_PATH, metavar="FILE", help="also write all figures to FILE"
)
@click.option("--html", "html_file", type=_PATH, metavar="FILE", help="write a report with curves")
def compare(
    model: str,
    serve_flags: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
    **options: Any,
) -> None:
    """Compare engines on one model, on this machine.

    Each engine is served in turn and gets the same requests: time to first token, time per output token,
    throughput, start, memory, and what it loses compared with float32; for recordings, latency, seconds of
    audio per second, and the word error rate. An engine that fails is a row with its reason.
    """
    check_folders(json=json_file, html=html_file)
    from galley.bench.serve.session import Plan
    from galley.quality.contenders import compare as measure

    entries = _entries(model, options["engines"], options["engine_options"], serve_flags)
    plan = Plan(
        kind="concurrency",
        loads=numbers("--concurrency", options["concurrency"], whole=True),
        requests=options["requests"],
        seed=options["seed"],
    )
    recordings = _recordings(options["data"])
    if recordings and options["against"]:
        raise SettingsError(
            "--against is for language models, but --data has recordings, whose word errors are measured: "
            "leave it out"
        )
    workload = _workload(recordings, **options)
    facts = _facts(workload, **options)
    total = len(entries) * sum(map(plan.size, plan.loads))
    with named_progress("compare", total) as on_work:
        reference = (options["against"] or model) if options["loss"] and not recordings else ""
        comparison = measure(entries, model, reference, plan, workload, facts, on_work, recordings)
    _print(comparison)
    write_json(json_file, comparison)
    if html_file is not None:
        from galley.quality.contenders_page import page

        write_text(html_file, page(comparison))
    if not any(one.points for one in comparison.contenders):
        raise click.exceptions.Exit(1)


def _entries(
    model: str, engines: str, engine_options: tuple[str, ...], flags: tuple[str, ...]
) -> "list[Entry]":
    from galley.quality.contenders import Entry

    options: dict[str, str] = {}
    for given in engine_options:
        engine, equals, text = given.partition("=")
        if not equals:
            raise SettingsError(f"--engine-options is {given!r}, expected ENGINE=JSON")
        options[engine] = text
    entries = []
    for part in engines.split(","):
        engine, _, own = part.strip().partition("=")
        if not engine:
            raise SettingsError(f"--engines is {engines!r}, expected ENGINE,ENGINE or ENGINE=MODEL")
        mine = ("--engine-options", options.pop(engine)) if engine in options else ()
        entries.append(Entry(engine, own or model, (*flags, *mine), bool(own)))
    if options:
        raise SettingsError(
            f"--engine-options names {', '.join(options)}, which --engines does not have"
        )
    return entries


def _facts(
    workload: "Workload", data: Path | None, requests: int, **options: Any
) -> dict[str, str]:
    facts = {"requests": f"{requests} in each run"}
    if workload.body:
        facts["body"] = options["body"]
    if workload.recordings:
        return facts | {"data": f"{data}, {len(workload.recordings)} recordings"}
    prompt_tokens, output_tokens = options["prompt_tokens"], options["output_tokens"]
    facts["seed"] = str(options["seed"])
    if data is None:
        return facts | {"prompt tokens": prompt_tokens, "output tokens": output_tokens}
    return facts | {
        "data": str(data),
        "output tokens": f"{output_tokens}, where a line has no number",
    }


def _recordings(data: Path | None) -> "list[ManifestEntry]":
    """Return the entries of a file of recordings; none if its first line is of another kind."""
    if data is None or not data.is_file():
        return []
    with data.open("rb") as file:
        if b'"audio"' not in file.readline(_FIRST_LINE):
            return []
    from galley.speech import require_extra

    require_extra()
    from galley.speech.evaluate import read_manifest

    return read_manifest(data)


def _workload(
    recordings: "Sequence[ManifestEntry]",
    data: Path | None,
    prompt_tokens: str,
    output_tokens: str,
    seed: int,
    body: str,
    **_: object,
) -> "Workload":
    from galley.bench.serve.lengths import Lengths
    from galley.bench.serve.workload import Workload, read_lines

    fields = json_object("--body", body)
    if recordings and (own := _OF_TRANSCRIPTS & fields.keys()):
        raise SettingsError(
            f"--body has {', '.join(sorted(own))}, but recordings are always transcribed as verbose_json, "
            "which has the words and the length: leave it out"
        )
    lines = () if data is None or recordings else read_lines(data)
    endpoint: Endpoint = "chat" if any(line.messages for line in lines) else "completions"
    return Workload(
        endpoint="transcriptions" if recordings else endpoint,
        recordings=[entry.audio for entry in recordings],
        prompt_tokens=Lengths.parse(prompt_tokens, "--prompt-tokens"),
        output_tokens=Lengths.parse(output_tokens, "--output-tokens"),
        body=fields,
        lines=lines,
        seed=seed,
    )


def _print(comparison: "Comparison") -> None:
    from galley.quality.contenders_page import advice, notes, rows

    header, *body = rows(comparison)
    print(table(header, body))
    for note in notes(comparison):
        print(note)
    print(advice(comparison))
