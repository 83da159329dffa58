"""The folder of results: complete or absent, one process at a time."""

from pathlib import Path

import pytest

from galley.calls.folder import CALL_FILE, CallFolder, CallRecord, now, write_json
from galley.calls.watch import recordings
from galley.errors import RequestError, SettingsError


def record(call: str, **fields: object) -> CallRecord:
    return CallRecord(
        **{  # type: ignore[arg-type]
            "id": call,
            "tenant": "",
            "recording": f"/in/{call}",
            "created": now(),
            "duration": 1.0,
            "speakers": 2,
            "redact": (),
            "redacted": {},
            **fields,
        }
    )


def write(folder: CallFolder, call: str) -> None:
    with folder.writing(call) as into:
        (into / "transcript.txt").write_text("A: hello")
        write_json(into / CALL_FILE, record(call))


def test_results_appear_at_once(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:
        with folder.writing("a/b.wav") as into:
            write_json(into / CALL_FILE, record("a/b.wav"))
            assert not folder.is_done("a/b.wav")
        assert folder.is_done("a/b.wav")
        assert [found.id for _, found in folder.calls()] == ["a/b.wav"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:
        writing = folder.writing("a.wav")
        (writing.__enter__() / "transcript.txt").write_text("A: hello")
        with pytest.raises(ZeroDivisionError):
            writing.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial" / "transcript.txt").write_text("A: hello")
    with CallFolder(tmp_path) as folder:
        assert not (tmp_path / ".partial").exists()
        write(folder, "a.wav")


def test_two_processes_cannot_write(tmp_path: Path) -> None:
    with CallFolder(tmp_path):
        with pytest.raises(SettingsError, match="another process uses"):
            CallFolder(tmp_path)
        with CallFolder(tmp_path, writes=False) as reader:
            assert list(reader.calls()) == []


def test_a_call_that_is_given_up_is_retried_on_request(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:
        folder.fail("call", Path("/in/call"), "it is empty", 1)
        assert folder.has_failed("call")
        assert '"error": "it is empty"' in (tmp_path / "_failed" / "call.json").read_text()
        assert list(folder.calls()) == []
        folder.retry("call")
        assert not folder.has_failed("call")
        folder.fail("call", Path("/in/call"), "it is empty", 1)
        write(folder, "call")
        assert not folder.has_failed("call")


@pytest.mark.parametrize("call", ["", ".", "..", "../a.wav", "/a.wav", "_failed", "b.wav"])
def test_only_calls_are_found(tmp_path: Path, call: str) -> None:
    with CallFolder(tmp_path / "results") as folder:
        write(folder, "a.wav")
        (tmp_path / "a.wav").mkdir()
        write_json(tmp_path / "a.wav" / CALL_FILE, record("a.wav"))
        with pytest.raises(RequestError, match="has no call"):
            folder.find(call)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:
        write(folder, "a.wav")
        (tmp_path / "a.wav" / CALL_FILE).write_text('{"id": 1}')
        with pytest.raises(RequestError, match=r"a\.wav/call\.json"):
            list(folder.calls())


def test_recordings_are_found_by_their_endings(tmp_path: Path) -> None:
    for name in ("b.WAV", "a/c.mp3", "notes.txt", ".hidden.wav", ".git/d.wav"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert [call for call, _ in recordings(tmp_path, settled=False)] == ["a/c.mp3", "b.WAV"]
    assert list(recordings(tmp_path, settled=True)) == []
