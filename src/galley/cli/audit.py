"""``galley audit``: check an audit log."""

from pathlib import Path

import click

from galley.cli.options import Group


@click.group("audit", cls=Group)
def audit_group() -> None:
    """Check audit logs (galley serve --audit-log FILE)."""


@audit_group.command("verify")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), help="the audit log")
@click.option("--head", help="hash that the last line must have, as an earlier check printed it")
@click.option(
    "--contains",
    metavar="HASH",
    help="hash that some line must have; up to that line, nothing was rewritten",
)
def verify(file: Path, head: str | None, contains: str | None) -> None:
    """Check that no line was changed, removed or moved; exit code 1 names the first that was.

    Store the printed head elsewhere: lines missing at the end, or rewritten from some line on, are found
    only by comparing with it (--head, or --contains after more lines were written).
    """
    from galley.observe.audit import AuditError
    from galley.observe.audit import verify as check

    found = check(file, contains)
    if head is not None and head != found.head.hash:
        raise AuditError(f"the last line of {file} has the hash {found.head.hash}, not {head}")
    span = f", {found.first} to {found.last}" if found.first else ""
    click.echo(f"{found.head.lines} lines{span}; head {found.head.hash}")
