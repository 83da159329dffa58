"""Retention: what is deleted of calls, and when; every deletion is in the audit log before it happens.

A sweep that is killed at any step leaves files that the next sweep deletes, and no deletion without a line.
``call.json`` has nothing that was said. It stays, so that a recording is not processed again.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from galley.calls.folder import FILES, CallFolder, CallRecord
from galley.errors import RequestError, SettingsError
from galley.observe.audit import AuditLog

RECORDING: Final = "recording"
"""The kind of the original recording, which is outside of the folder of results."""
KINDS: Final = (*FILES, RECORDING)

_RULE: Final = re.compile(
    r"(?:(?P<tenant>[^:=]*):)?(?P<kind>[a-z]+)=(?P<count>\d{1,6})(?P<unit>[smhd])"
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True)
class Rule:
    """How long a kind of data is kept, from the time of the results.

    Attributes:
        tenant: whose data; None: everybody's for whom there is no rule.
        kind: one of :data:`KINDS`.
        age: the time after which it is deleted.
    """

    tenant: str | None
    kind: str
    age: timedelta


def parse_rule(text: str) -> Rule:
    """Return the rule that ``audio=0d`` or ``TENANT:transcript=30d`` stands for.

    Raises:
        SettingsError: it is not a rule.
    """
    match = _RULE.fullmatch(text)
    if match is None or match["kind"] not in KINDS:
        raise SettingsError(
            f"{text[:80]!r} is not a rule; expected KIND=AGE or TENANT:KIND=AGE, such as transcript=30d, "
            f"with a kind of {', '.join(KINDS)} and an age in s, m, h or d"
        )
    seconds = int(match["count"]) * _UNITS[match["unit"]]
    return Rule(match["tenant"], match["kind"], timedelta(seconds=seconds))


def check_rules(rules: Iterable[Rule]) -> dict[tuple[str | None, str], timedelta]:
    """Return (tenant, kind) -> age. Raises SettingsError for two rules about the same data."""
    ages: dict[tuple[str | None, str], timedelta] = {}
    for rule in rules:
        if (rule.tenant, rule.kind) in ages:
            whose = "" if rule.tenant is None else f" of {rule.tenant!r}"
            raise SettingsError(f"two rules say how long {rule.kind}{whose} is kept")
        ages[rule.tenant, rule.kind] = rule.age
    return ages


def sweep(folder: CallFolder, rules: Iterable[Rule], time: datetime, audit: AuditLog | None) -> int:
    """Delete what is older than the rules allow, and return the number of deleted files.

    Args:
        folder: the calls.
        rules: a tenant's own rule has precedence over everybody's.
        time: the time now.
        audit: gets a line before each deletion; None: there is no log.

    Raises:
        SettingsError: two rules are about the same data.
        RequestError: a file cannot be deleted, the audit log cannot be written, or, after all else is
            deleted, a call's record cannot be read.
    """
    ages = check_rules(rules)
    count = 0
    damaged: list[RequestError] = []
    for place, record in folder.calls(damaged.append):
        for kind in KINDS:
            age = ages.get((record.tenant, kind), ages.get((None, kind)))
            if age is not None and record.time + age <= time:
                count += _delete(place, record, kind, audit, why="retention")
    if damaged:
        raise RequestError(
            f"{damaged[0]}: the age of {len(damaged)} calls is not known; of the others, {count} files are "
            "deleted. Delete the folders of these calls"
        )
    return count


def delete(folder: CallFolder, call: str, audit: AuditLog | None, *, recording: bool) -> int:
    """Delete all data of one call, and return the number of deleted files.

    Args:
        folder: the calls.
        call: the call's id.
        audit: gets a line before each deletion; None: there is no log.
        recording: delete the original recording, too.

    Raises:
        RequestError: there is no such call, a file cannot be deleted, or the audit log cannot be written.
    """
    place, record = folder.find(call)
    kinds = KINDS if recording else tuple(FILES)
    return sum(_delete(place, record, kind, audit, why="request") for kind in kinds)


def _delete(place: Path, record: CallRecord, kind: str, audit: AuditLog | None, *, why: str) -> int:
    count = 0
    for path in _files(place, record, kind):
        if audit is not None:
            audit.write(
                {
                    "event": "deletion",
                    "call": record.id,
                    "tenant": record.tenant,
                    "kind": kind,
                    "file": path.name,
                    "why": why,
                }
            )
            if not audit.usable:
                raise RequestError("the audit log cannot be written; nothing more is deleted")
        try:
            path.unlink(missing_ok=True)  # another sweep may be faster
        except OSError as error:
            raise RequestError(f"cannot delete {path}: {error.strerror}") from error
        count += 1
    return count


def _files(place: Path, record: CallRecord, kind: str) -> Iterator[Path]:
    """Yield the files of a kind that are still there."""
    names = FILES.get(kind, ())
    paths = [place / name for name in names] if names else [Path(record.recording)]
    return (path for path in paths if path.exists())
