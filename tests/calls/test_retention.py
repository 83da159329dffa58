"""Retention: nothing is deleted early, unlogged, or forgotten, wherever a sweep is killed."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from galley.calls.folder import CALL_FILE, FILES, CallFolder, CallRecord, write_json
from galley.calls.retention import KINDS, Rule, delete, parse_rule, sweep
from galley.errors import RequestError, SettingsError
from galley.observe.audit import AuditLog, verify

TIME = datetime(2026, 11, 1, tzinfo=UTC)
RULES = [parse_rule(rule) for rule in ("audio=0d", "transcript=30d", "acme:transcript=2d")]
CALLS = (("old.wav", "", 40), ("new.wav", "", 3), ("sub/acme.wav", "acme", 3), ("now.wav", "", 0))
"""Call, tenant, and age in days."""


class Killed(BaseException):
    """Stands for the end of the process."""


def make(root: Path) -> CallFolder:
    folder = CallFolder(root / "results", writes=False)
    for call, tenant, days in CALLS:
        place = folder.root / call
        place.mkdir(parents=True)
        recording = root / "in" / call
        recording.parent.mkdir(parents=True, exist_ok=True)
        recording.write_text("sound")
        for name in (name for names in FILES.values() for name in names):
            (place / name).write_text("said")
        record = CallRecord(
            id=call,
            tenant=tenant,
            recording=str(recording),
            created=(TIME - timedelta(days=days)).isoformat(),
            duration=1.0,
            speakers=1,
            redact=(),
            redacted={},
        )
        write_json(place / CALL_FILE, record)
    return folder


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def due(root: Path) -> set[str]:
    """Return what the rules say is to be deleted."""
    gone = {f"results/{call}/redacted.wav" for call, *_ in CALLS}
    for call in ("old.wav", "sub/acme.wav"):
        gone |= {f"results/{call}/{name}" for name in FILES["transcript"]}
    return gone & files(root)


def test_what_is_due_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before, expected = files(tmp_path), due(tmp_path)
    assert sweep(folder, RULES, TIME, None) == len(expected)
    assert before - files(tmp_path) == expected
    assert sweep(folder, RULES, TIME, None) == 0


def test_a_damaged_record_does_not_keep_other_data(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder.root / "now.wav" / CALL_FILE).write_text("{")
    expected = files(tmp_path) - {path for path in due(tmp_path) if "now.wav" not in path}
    with pytest.raises(RequestError, match=r"now\.wav/call\.json.*the age of 1 calls is not known"):
        sweep(folder, RULES, TIME, None)
    assert files(tmp_path) == expected


def test_originals_are_deleted_if_a_rule_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = files(tmp_path)
    sweep(folder, [parse_rule("recording=7d")], TIME, None)
    assert before - files(tmp_path) == {"in/old.wav"}


def killing(after: int, action: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``action``, which ends the process instead of its ``after``-th call."""
    left = after

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return action(*args, **kwargs)

    return act


@pytest.mark.parametrize("where", ["log", "file"])
@pytest.mark.parametrize("step", range(9))
def test_a_sweep_that_is_killed_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, step: int
) -> None:
    folder = make(tmp_path)
    before, expected = files(tmp_path), due(tmp_path)
    log = tmp_path / "audit.jsonl"
    audit = AuditLog(log)
    with monkeypatch.context() as patch:
        if where == "log":
            patch.setattr(AuditLog, "write", killing(step, AuditLog.write))
        else:
            patch.setattr(Path, "unlink", killing(step, Path.unlink))
        try:
            sweep(folder, RULES, TIME, audit)
        except Killed:
            assert len(before - files(tmp_path)) == step
        else:
            assert step >= len(expected)
    gone = before - files(tmp_path)
    assert gone <= expected
    audit.close()
    audit = AuditLog(log)
    sweep(folder, RULES, TIME, audit)
    audit.close()
    assert before - files(tmp_path) == expected
    verify(log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    logged = {f"results/{line['call']}/{line['file']}" for line in lines}
    assert logged == expected


def test_a_call_is_deleted_by_its_id(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = files(tmp_path)
    delete(folder, "sub/acme.wav", None, recording=False)
    gone = before - files(tmp_path)
    assert gone == {f"results/sub/acme.wav/{n}" for names in FILES.values() for n in names}
    assert delete(folder, "sub/acme.wav", None, recording=True) == 1
    assert not (tmp_path / "in/sub/acme.wav").exists()
    with pytest.raises(RequestError, match="has no call 'other'"):
        delete(folder, "other", None, recording=False)


def test_without_its_audit_log_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path)
    before = files(tmp_path)
    audit = AuditLog(Path("/dev/full"))
    with pytest.raises(RequestError, match="audit log cannot be written"):
        sweep(folder, RULES, TIME, audit)
    assert files(tmp_path) == before


def test_rules_are_read() -> None:
    assert parse_rule("audio=0d") == Rule(None, "audio", timedelta(0))
    assert parse_rule("acme:recording=36h") == Rule("acme", "recording", timedelta(hours=36))
    assert parse_rule(":ticket=5m") == Rule("", "ticket", timedelta(minutes=5))
    assert {parse_rule(f"{kind}=1s").kind for kind in KINDS} == set(KINDS)


@pytest.mark.parametrize("text", ["", "audio", "audio=1", "audio=-1d", "sound=1d", "a:b:audio=1d"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a rule"):
        parse_rule(text)


def test_contradicting_rules_are_refused(tmp_path: Path) -> None:
    rules = [parse_rule("audio=1d"), parse_rule("audio=2d")]
    with pytest.raises(SettingsError, match="two rules say how long audio is kept"):
        sweep(make(tmp_path), rules, TIME, None)
