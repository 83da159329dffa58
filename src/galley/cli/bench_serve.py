"""``galley bench serve``: load tests of a server with OpenAI's API."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from galley.cli.options import ABOVE_ZERO, Command
from galley.cli.report import check_folders, write_json, write_text
from galley.cli.terminal import named_progress, table
from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.bench.serve.results import Report
    from galley.bench.serve.session import Plan
    from galley.bench.serve.workload import Workload

_PATH: Final = click.Path(path_type=Path)
_FILE: Final = click.Path(path_type=Path, exists=True)
_REQUESTS: Final = 100
_CONCURRENCY: Final = "1,4,16"
_LATE: Final = 0.05  # of the median latency: a client that lags more than this distorts its results

_Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _options(*options: _Decorator) -> _Decorator:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_load_options = _options(
    click.option(
        "--rate", metavar="R,R,...", help="open loop: requests per second, Poisson arrivals"
    ),
    click.option(
        "--concurrency",
        metavar="N,N,...",
        help=f"closed loop: concurrent requests; default: {_CONCURRENCY}",
    ),
    click.option(
        "--trace",
        type=_FILE,
        metavar="FILE",
        help="open loop: JSONL lines with a timestamp (seconds) and the fields of --data",
    ),
    click.option(
        "--requests", type=click.IntRange(min=1), help=f"requests of each run; default: {_REQUESTS}"
    ),
    click.option(
        "--seconds",
        type=ABOVE_ZERO,
        help="start requests for this many seconds, instead of --requests",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(min=0),
        default=4,
        show_default=True,
        help="uncounted warm-up requests before each run",
    ),
)

_request_options = _options(
    click.option(
        "--endpoint",
        type=click.Choice(["chat", "completions", "embeddings", "transcriptions"]),
        default="chat",
        show_default=True,
    ),
    click.option(
        "--prompt-tokens",
        metavar="LENGTH",
        default="256",
        show_default=True,
        help="512, 64-256, normal:512,128 (mean, deviation) or lognormal:256,0.8 (median, sigma)",
    ),
    click.option(
        "--output-tokens",
        metavar="LENGTH",
        default="128",
        show_default=True,
        help="like --prompt-tokens; sent as max_tokens",
    ),
    click.option(
        "--shared-prefix",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="share of each synthetic prompt, from the start, that all prompts have in common",
    ),
    click.option(
        "--data",
        type=_FILE,
        metavar="PATH",
        help="JSONL of prompts (prompt or messages, output_tokens); for transcriptions, a recording or a "
        "folder of recordings",
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=True,
        help="request answers of full length; default: yes",
    ),
    click.option(
        "--body",
        metavar="JSON",
        default="{}",
        help='additional request fields: {"temperature": 1}',
    ),
    click.option("--model", metavar="NAME", help="served name; default: the first of /v1/models"),
    click.option(
        "--api-key",
        envvar="GALLEY_API_KEY",
        show_envvar=True,
        help="sent as bearer token",
    ),
    click.option(
        "--timeout",
        type=ABOVE_ZERO,
        default=600.0,
        show_default=True,
        help="time limit of a request in seconds",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
)

_report_options = _options(
    click.option(
        "--slo", metavar="M=T,...", default="", help="for goodput: ttft=1s,tpot=50ms,latency=10s"
    ),
    click.option(
        "--price-per-hour",
        type=ABOVE_ZERO,
        help="price of the server's machine in US dollars, to compute the cost per token",
    ),
    click.option(
        "--json", "json_file", type=_PATH, metavar="FILE", help="also write all figures to FILE"
    ),
    click.option(
        "--html", "html_file", type=_PATH, metavar="FILE", help="write a report with curves"
    ),
    click.option(
        "--compare",
        nargs=2,
        type=_FILE,
        metavar="A.json B.json",
        help="measure nothing; compare two reports of --json side by side, with --html on one page",
    ),
)


@click.command(
    "serve",
    cls=Command,
    examples=(
        "galley bench serve galley-demo --concurrency 1,8,32",
        "galley bench serve http://127.0.0.1:8000 --rate 2,4,8 --slo ttft=0.5 --html report.html",
    ),
)
@click.argument(
    "target",
    metavar="[URL | MODEL]",
    required=False,
    help="a running server, or the model to serve",
)
@click.argument(
    "serve_flags",
    nargs=-1,
    metavar="[-- FLAGS]",
    type=click.UNPROCESSED,
    help="flags of galley serve, only with MODEL",
)
@_load_options
@_request_options
@_report_options
def serve(
    target: str | None,
    serve_flags: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
    compare: tuple[Path, Path] | None,
    **options: Any,
) -> None:
    """Measure a server with OpenAI's API, as seen by its clients.

    URL is any running server. MODEL is a folder, hub id or bundled model; galley serve is started with it
    on this machine, with the FLAGS after --.
    """
    check_folders(json=json_file, html=html_file)
    if compare:
        _compare(compare, html_file)
        return
    if target is None:
        raise SettingsError("give a server's URL, a model to serve, or two reports to --compare")
    is_url = target.startswith(("http://", "https://"))
    if is_url and serve_flags:
        raise SettingsError(
            f"{' '.join(serve_flags)}: flags of galley serve need a MODEL, not a URL"
        )
    plan, workload = _plan(options), _workload(options)
    if is_url:
        report = _measure(target, target, plan, workload, options)
    else:
        from galley.bench.serve.server import started

        with started(target, *serve_flags) as (url, _):
            named = " ".join(("galley serve", target, *serve_flags))
            report = _measure(url, named, plan, workload, options)
    _print(report)
    write_json(json_file, report)
    if html_file is not None:
        from galley.bench.serve.page import page

        write_text(html_file, page([(report.model, report)]))
    if not any(point.completed for point in report.points):
        raise click.exceptions.Exit(1)


def _plan(options: dict[str, Any]) -> "Plan":
    from galley.bench.serve.objective import parse_objective
    from galley.bench.serve.session import Plan
    from galley.bench.serve.workload import read_lines

    given = [name for name in ("rate", "concurrency", "trace") if options[name] is not None]
    if len(given) > 1:
        raise SettingsError(f"--{given[0]} and --{given[1]} exclude each other; give one of them")
    if options["requests"] is not None and options["seconds"] is not None:
        raise SettingsError("--requests and --seconds exclude each other; give one of them")
    kind = given[0] if given else "concurrency"
    requests, times = options["requests"], []
    if kind == "trace":
        times = [line.timestamp or 0.0 for line in read_lines(options["trace"], trace=True)]
        times = times[:requests]
        loads = [len(times) / times[-1] if times[-1] else float(len(times))]
    else:
        loads = numbers(f"--{kind}", options[kind] or _CONCURRENCY, whole=kind == "concurrency")
        if requests is None and options["seconds"] is None:
            requests = _REQUESTS
    return Plan(
        kind=kind,
        loads=loads,
        requests=requests,
        seconds=options["seconds"],
        warm_up=options["warmup"],
        times=times,
        seed=options["seed"],
        objective=parse_objective(options["slo"]),
        price_per_hour=options["price_per_hour"],
    )


def _workload(options: dict[str, Any]) -> "Workload":
    from galley.bench.serve.lengths import Lengths
    from galley.bench.serve.workload import Workload, find_recordings, read_lines

    data, trace = options["data"], options["trace"]
    if data and trace:
        raise SettingsError(
            "--data and --trace exclude each other: the lines of a trace contain the prompts"
        )
    transcribes = options["endpoint"] == "transcriptions"
    return Workload(
        endpoint=options["endpoint"],
        prompt_tokens=Lengths.parse(options["prompt_tokens"], "--prompt-tokens"),
        output_tokens=Lengths.parse(options["output_tokens"], "--output-tokens"),
        shared_prefix=options["shared_prefix"],
        ignore_eos=options["ignore_eos"],
        body=json_object("--body", options["body"]),
        lines=read_lines(data or trace, trace=bool(trace))
        if (data or trace) and not transcribes
        else (),
        recordings=find_recordings(data) if data and transcribes else (),
        seed=options["seed"],
    )


_FACTS: Final = (
    "endpoint",
    "prompt_tokens",
    "output_tokens",
    "shared_prefix",
    "data",
    "trace",
    "body",
)
_LENGTHS: Final = ("prompt_tokens", "output_tokens", "shared_prefix", "body")


def _measure(
    url: str, target: str, plan: "Plan", workload: "Workload", options: dict[str, Any]
) -> "Report":
    from galley.bench.serve.client import Client
    from galley.bench.serve.session import run_all
    from galley.machine import cpu_and_cores

    names = [name for name in _FACTS if not (workload.recordings and name in _LENGTHS)]
    facts = {
        name.replace("_", " "): str(options[name]) for name in names if options[name] is not None
    }
    facts |= {"warm-up": f"{plan.warm_up} requests", "seed": str(options["seed"])}
    client = Client(url, api_key=options["api_key"], timeout=options["timeout"])
    with named_progress("bench", sum(map(plan.size, plan.loads))) as on_progress:
        return asyncio.run(
            run_all(
                client,
                plan,
                workload,
                model=options["model"],
                target=target,
                workload_facts=facts,
                machine=cpu_and_cores(),
                on_progress=on_progress,
            )
        )


def _print(report: "Report") -> None:
    from galley.bench.serve.compare import comparison_rows

    print(f"{report.target}, model {report.model}")
    print(table(("load", *(point.name for point in report.points)), comparison_rows(report.points)))
    for point in report.points:
        for kind, count in point.errors.items():
            print(f"{point.name}: {count} x {kind}: {point.details[kind]}")
        late = max(point.lag_s.p99, point.loop_delay_s.p99)
        if point.latency_s is not None and late > _LATE * point.latency_s.p50:
            print(
                f"{point.name}: the client itself was {1e3 * late:.1f} ms late at P99; "
                "run it on another machine, or with less load"
            )


def _compare(files: tuple[Path, Path], html_file: Path | None) -> None:
    from galley.bench.serve.compare import compared
    from galley.bench.serve.page import page
    from galley.bench.serve.results import read_report

    reports = [read_report(file) for file in files]
    header = ("load", "figure", files[0].stem, files[1].stem, "ratio")
    print(table(header, compared(*reports), left=(0, 1)))
    if html_file is not None:
        named = [(file.stem, report) for file, report in zip(files, reports, strict=True)]
        write_text(html_file, page(named))


def numbers(name: str, text: str, *, whole: bool) -> list[float]:
    """Return the numbers of an option, separated by commas. Raises SettingsError if they are none."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < n < 1e6 and (not whole or n == int(n)) for n in numbers):
        kind = "whole numbers: 1,4,16" if whole else "numbers above 0: 0.5,1,2"
        raise SettingsError(f"{name} is {text!r}, expected {kind}")
    return numbers


def json_object(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object that the flag ``name`` is given. Raises SettingsError if it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{name} is {text!r}, expected an object")
    return value
