"""``galley doctor``: problems of this machine for serving models."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.options import Command, Flags, with_flags
from galley.cli.report import check_folders, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from galley.doctor.findings import Finding

_MARKS: Final = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(cls=Command)
@with_flags(("host", "port", "threads", "device", "weight_cache"))
@click.option(
    "--measure/--no-measure",
    default=True,
    show_default=True,
    help="measure cores and memory for some seconds",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="also write the findings to FILE; -: write only JSON, to stdout",
)
def doctor(flags: Flags, measure: bool, json_file: str | None) -> None:
    """Find problems of this machine for serving models, with their costs and remedies.

    Checks kernels, cores, memory, GPUs, the disk of packed weights, the port and open files, with the
    settings that galley serve would use here. Exit codes: 0 for notes at most, 1 for warnings, 2 for
    problems.
    """
    check_folders(json=Path(json_file) if json_file else None)  # the folder of "-" exists
    settings = flags.settings()
    from galley.doctor.examine import examine
    from galley.doctor.findings import EXIT_CODES, Context, Host, worst

    findings: list[Finding] = []
    for finding in examine(Context(settings, Host()), measure=measure):
        findings.append(finding)
        if json_file != "-":
            _print(finding)
    level = worst(findings)
    if json_file != "-":
        counts = [f"{sum(f.level == name for f in findings)} {name}" for name in _MARKS]
        print(f"\n{', '.join(counts)}")
    if json_file is not None:
        _write(json_file, level, findings)
    raise click.exceptions.Exit(EXIT_CODES[level])


def _print(finding: "Finding") -> None:
    print(f"{_MARKS[finding.level]:<8} {finding.check}: {finding.found}", flush=True)
    if finding.cost:
        print(f"{'':<9}costs: {finding.cost}")
    if finding.remedy:
        print(f"{'':<9}to do: {finding.remedy}")


def _write(json_file: str, level: str, findings: "Sequence[Finding]") -> None:
    import msgspec

    page = msgspec.json.format(
        msgspec.json.encode({"level": level, "findings": findings}), indent=2
    )
    if json_file == "-":
        print(page.decode())
    else:
        write_text(Path(json_file), page.decode() + "\n")
