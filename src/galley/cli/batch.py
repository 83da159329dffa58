"""``galley batch``: a file of OpenAI batch lines through the server's own handlers, without HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from galley.cli.batch_files import Results, read_lines, result_id, scan
from galley.cli.options import Flags, start_logging, with_flags
from galley.config import EngineSettings, Settings
from galley.errors import RequestError

_AHEAD: Final = 2
"""Lines in flight for each sequence that may run, so that the engine never waits for the file."""


@with_flags(EngineSettings, model=True, extra=("served_model_name",))
def batch(
    flags: Flags,
    requests: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="one request a line")],
    results: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="one result a line")],
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Results are written as they come, not in the order of the requests. After an interruption run
    the same command again: it goes on with the lines whose result OUT.jsonl does not hold yet.
    """
    settings = flags.settings()
    start_logging(settings)
    wanted = scan(requests)
    if results.exists() and results.samefile(requests):
        raise RequestError(f"{requests} cannot be read and written at the same time")
    with Results(results, wanted) as output:
        before = len(output.done)
        if before < len(wanted):
            _answer_all(settings, requests, wanted, output)
    typer.echo(f"{results}: {len(wanted) - before} results added, {before} were there", err=True)


def _answer_all(
    settings: Settings, requests: Path, wanted: dict[str, str | None], output: Results
) -> None:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    todo = (
        (number, text)
        for number, text in read_lines(requests)
        if result_id(number) in wanted and result_id(number) not in output.done
    )
    columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("answering", total=len(wanted), completed=len(output.done))
        asyncio.run(_run(settings, todo, wanted, output, lambda: progress.advance(bar)))


async def _run(
    settings: Settings,
    todo: Iterator[tuple[int, bytes]],
    wanted: dict[str, str | None],
    output: Results,
    advance: Callable[[], None],
) -> None:
    """Keep the engine full until every line has its result."""
    from galley.cli.batch_lines import answer
    from galley.server.served import open_model

    async with open_model(settings) as served:

        async def work() -> None:
            for number, text in todo:
                output.append(await answer(served, number, text, wanted[result_id(number)]))
                advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AHEAD * settings.running_limit):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
