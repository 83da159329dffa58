"""``galley batch``: a file of OpenAI batch lines through the server's gateway, without HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from galley.cli.batch_files import Results, read_lines, result_id, scan
from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.terminal import progress
from galley.errors import RequestError
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings

_AHEAD: Final = 2
"""Lines in flight for each sequence that may run, so that the engine never waits for the file."""

_REASONS: Final = 5
"""Number of kinds of failures that are reported at the end."""


@click.command(cls=Command)
@with_flags(EngineSettings, model=True, extra=("served_model_name",))
@click.option(
    "--retry-failed/--no-retry-failed",
    default=True,
    show_default=True,
    help="retry the lines whose result in OUT.jsonl is a failure",
)
@click.argument(
    "requests", metavar="IN.jsonl", type=click.Path(path_type=Path), help="one request per line"
)
@click.argument(
    "results", metavar="OUT.jsonl", type=click.Path(path_type=Path), help="one result per line"
)
def batch(flags: Flags, requests: Path, results: Path, retry_failed: bool) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Results are written as they complete, not in the order of the requests. After an interruption, run
    the same command again: it continues with the lines that have no result in OUT.jsonl yet. The exit
    code is 1 if OUT.jsonl contains failures at the end; they are counted by reason.
    """
    settings = flags.settings()
    start_logging(settings)
    wanted = scan(requests)
    if results.exists() and results.samefile(requests):
        raise RequestError(
            f"{requests} is both the input and the output; name another file for the results"
        )
    with Results(results, wanted, retry_failed=retry_failed) as output:
        before = len(output.done)
        if before < len(wanted):
            _answer_all(settings, requests, wanted, output)
    failed = output.failures.total()
    added = len(wanted) - before
    click.echo(
        f"{results}: {added} results added, {before} already present, {failed} failed", err=True
    )
    for reason, count in output.failures.most_common(_REASONS):
        click.echo(f"  {count} x {reason}", err=True)
    if len(output.failures) > _REASONS:
        click.echo(f"  and {len(output.failures) - _REASONS} other reasons", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _answer_all(
    settings: Settings, requests: Path, wanted: dict[str, str | None], output: Results
) -> None:
    todo = (
        (number, text)
        for number, text in read_lines(requests)
        if result_id(number) in wanted and result_id(number) not in output.done
    )
    with progress("answering", len(wanted), done=len(output.done)) as bar:
        asyncio.run(_run(settings, todo, wanted, output, lambda: bar.update(1)))


async def _run(
    settings: Settings,
    todo: Iterator[tuple[int, bytes]],
    wanted: dict[str, str | None],
    output: Results,
    advance: Callable[[], None],
) -> None:
    """Keep the engine full until every line has its result."""
    from galley.cli.batch_lines import answer
    from galley.gateway.registry import open_models

    async with open_models(settings) as models:

        async def work() -> None:
            for number, text in todo:
                output.append(await answer(models, number, text, wanted[result_id(number)]))
                advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AHEAD * settings.running_limit):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
