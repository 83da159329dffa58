"""``galley calls``: delete what is kept of calls, by age or by id."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from galley.cli.options import Group
from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.observe.audit import AuditLog


@click.group("calls", cls=Group)
def calls_group() -> None:
    """Delete what galley call keeps, by age or by call."""


def _folder(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--audit-log",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="append a line before each deletion, chained by hashes (galley audit verify)",
    )(command)
    return click.argument(
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="the folder of results (galley call --output-dir)",
    )(command)


def _log(path: Path | None) -> "AuditLog | None":
    from galley.observe.audit import AuditLog

    return None if path is None else AuditLog(path)


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder of results")


@calls_group.command("sweep")
@_folder
@click.option(
    "--keep",
    "rules",
    metavar="[TENANT:]KIND=AGE",
    multiple=True,
    required=True,
    help="delete a kind of data once it is older: audio, transcript, quality, ticket, or recording (the "
    "original); an age such as 30d or 12h; repeat for several",
)
def sweep(folder: Path, rules: Sequence[str], audit_log: Path | None) -> None:
    """Delete what is older than its time of retention. Run it daily; it may be killed at any time."""
    from galley.calls.folder import CallFolder
    from galley.calls.retention import parse_rule
    from galley.calls.retention import sweep as delete_old

    _check(folder)
    parsed = [parse_rule(rule) for rule in rules]
    with CallFolder(folder, writes=False) as results:
        count = delete_old(results, parsed, datetime.now(UTC), _log(audit_log))
    click.echo(f"deleted {count} files")


@calls_group.command("delete")
@_folder
@click.argument("call", help="id of the call, which is its subfolder")
@click.option("--recording", is_flag=True, help="delete the original recording, too")
def delete(folder: Path, call: str, recording: bool, audit_log: Path | None) -> None:
    """Delete all that is kept of one call."""
    from galley.calls.folder import CallFolder
    from galley.calls.retention import delete as delete_call

    _check(folder)
    with CallFolder(folder, writes=False) as results:
        count = delete_call(results, call, _log(audit_log), recording=recording)
    click.echo(f"deleted {count} files")
