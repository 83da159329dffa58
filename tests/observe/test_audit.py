"""The audit log: a chain of lines in which any change is detected."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley.errors import SettingsError
from galley.observe.audit import AuditError, AuditLog, verify
from tests.cli.command import galley


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of five requests."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5):
        log.request("POST", "/v1/chat/completions", {"id": f"r{number}", "tenant": "search"})
    log.close()
    return path


def test_a_log_is_verified_and_continued(path: Path) -> None:
    before = verify(path)
    assert before.head.lines == 5
    log = AuditLog(path)
    log.request("GET", "/v1/models", {"id": "r5"})
    log.close()
    after = verify(path)
    assert after.head.lines == 6
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["previous"] == before.head.hash
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_only_known_fields_are_copied(path: Path) -> None:
    log = AuditLog(path)
    log.request("POST", "/v1/x", {"id": "r", "prompt": "my card is 4111", "reason": "4111"})
    log.close()
    assert "4111" not in path.read_text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_found(path: Path, data: st.DataObject) -> None:
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != content[at]))
    spoilt = path.with_name("spoilt")
    spoilt.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
    with pytest.raises(AuditError, match=re.escape(str(spoilt))):
        verify(spoilt)


@pytest.mark.parametrize("order", [[0, 2, 3, 4], [1, 2, 3, 4], [0, 2, 1, 3, 4], [0, 1, 1, 2, 3, 4]])
def test_lines_that_are_missing_moved_or_doubled_are_found(path: Path, order: list[int]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[at] for at in order))
    with pytest.raises(AuditError, match=r"line [123] "):
        verify(path)


def test_lines_missing_at_the_end_show_against_a_head(path: Path) -> None:
    head = verify(path).head.hash
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    assert galley("audit", "verify", path).returncode == 0
    cut = galley("audit", "verify", path, "--head", head)
    assert cut.returncode == 1
    assert head in cut.stderr
    assert galley("audit", "verify", path, "--contains", head).returncode == 1
    path.write_bytes(whole)
    log = AuditLog(path)
    log.request("GET", "/", {})
    log.close()
    assert galley("audit", "verify", path, "--contains", head).returncode == 0


@pytest.mark.parametrize("kept", [1, 100])
def test_an_unfinished_line_is_cut_off_and_recorded(path: Path, kept: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:kept])
    with pytest.raises(AuditError, match="not complete"):
        verify(path)
    AuditLog(path).close()
    assert verify(path).head.lines == 6
    assert json.loads(path.read_text().splitlines()[-1])["bytes"] == kept


def test_what_is_no_audit_log_or_has_a_writer_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    for text, says in (
        ("hello\n", "hash does not match"),
        ("hello\nno end", "hash does not match"),
        ("hello", "is not an audit log"),
    ):
        other.write_text(text)
        with pytest.raises(AuditError, match=says):
            AuditLog(other)
        assert other.read_text() == text, "another file stays as it is"
    with pytest.raises(SettingsError, match="cannot write"):
        AuditLog(tmp_path / "missing" / "audit.jsonl")
    log = AuditLog(path)
    with pytest.raises(SettingsError, match="another process writes"):
        AuditLog(path)
    log.close()


@pytest.mark.parametrize("body", ['{"line":1', '["line"', '{"line":"1","previous":"","time":""'])
def test_a_line_with_a_valid_hash_but_without_fields_is_found(path: Path, body: str) -> None:
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{body},"hash":"{digest}"}}\n')
    with pytest.raises(AuditError, match="is not a line of an audit log"):
        verify(path)
    with pytest.raises(AuditError, match="is not a line of an audit log"):
        AuditLog(path)


@pytest.mark.parametrize("kept", [1, 100])
def test_an_unfinished_first_line_is_cut_off(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    AuditLog(path).close()
    assert verify(path).head.lines == 1


FULL = """
import resource, signal, sys
from pathlib import Path
from galley.observe.audit import AuditLog, verify
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
log = AuditLog(path)
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, resource.RLIM_INFINITY))
log.request("GET", "/", {"id": "lost"})
assert not log.usable
assert path.stat().st_size == size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert log.usable
log.close()
print(verify(path).head.lines)
"""


def test_a_log_that_cannot_grow_is_not_usable_until_it_can(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True)
    assert done.stdout == "6\n", done.stderr
    assert "lost" not in path.read_text()
