"""``galley calls``: the quality of the calls that are kept, and deletion by age or by id."""

from collections.abc import Sequence
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
    """Report on the results of galley call, and delete them by age or by call."""


_folder = click.argument(
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="the folder of results (galley call --output-dir)",
)
_audit_log = click.option(
    "--audit-log",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="append a line before each deletion, chained by hashes (galley audit verify)",
)


def _log(path: Path | None) -> "AuditLog | None":
    from galley.observe.audit import AuditLog

    return None if path is None else AuditLog(path)


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder of results")


@calls_group.command("sweep")
@_folder
@_audit_log
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
@_audit_log
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


@calls_group.command("report")
@_folder
@click.option("--tenant", help="whose calls; default: all")
@click.option(
    "--metrics",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="also write the last day's figures for Prometheus (node exporter, textfile collector)",
)
def report(folder: Path, tenant: str | None, metrics: Path | None) -> None:
    """Print the quality of the calls by day, and compare the last day with the 28 days before.

    The exit code is 1 if the estimated word error rate rose by 10 % or more, and by more than chance
    explains.
    """
    from galley.calls.folder import CallFolder
    from galley.calls.report import LEAST_CALLS, days_of, drift_of, read_calls

    _check(folder)
    damaged: list[str] = []
    with CallFolder(folder, writes=False) as results:
        calls = list(read_calls(results, tenant, damaged))
    for message in damaged:
        click.echo(f"galley: {message}", err=True)
    days, drift = days_of(calls), drift_of(calls)
    click.echo(
        f"{'day':10}  {'calls':>6}  {'hours':>8}  {'est. WER':>8}  {'SNR':>8}  {'clipped':>8}"
    )
    for day in days:
        click.echo(
            f"{day.day}  {day.calls:6}  {day.hours:8.2f}  {_shown(day.estimated_wer, 100, ' %'):>8}  "
            f"{_shown(day.snr_db, 1, ' dB'):>8}  {_shown(day.clipped_share, 100, ' %'):>8}"
        )
    if metrics is not None:
        from galley.calls.report_metrics import write_metrics

        write_metrics(metrics, days, drift)
    if drift is None:
        click.echo(
            f"no comparison: the last day or the days before have fewer than {LEAST_CALLS} calls"
        )
        return
    click.echo(
        f"{'alarm: ' if drift.alarm else ''}estimated WER {_shown(drift.last, 100, ' %')} on the last day, "
        f"{_shown(drift.baseline, 100, ' %')} on the days before"
    )
    if drift.alarm:
        raise click.exceptions.Exit(1)


def _shown(value: float | None, scale: float, unit: str) -> str:
    return "-" if value is None else f"{scale * value:.1f}{unit}"
