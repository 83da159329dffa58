"""The folder of results: complete or absent, one process at a time."""

import os
from pathlib import Path

import pytest

from galley.calls.folder import CALL_FILE, CallFolder, CallRecord, now, write_json
from galley.calls.watch import recordings
from galley.errors import RequestError, SettingsError


def ids(folder: CallFolder) -> list[str]:
    """Return the ids of the calls, none of which is damaged."""
    damaged: list[RequestError] = []
    found = [record.id for _, record in folder.calls(damaged.append)]
    assert not damaged
    return found


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
        assert ids(folder) == ["a/b.wav"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:

        def fails() -> None:
            with folder.writing("a.wav") as into:
                (into / "transcript.txt").write_text("A: hello")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
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
            assert ids(reader) == []


def test_a_call_that_is_given_up_is_retried_on_request(tmp_path: Path) -> None:
    with CallFolder(tmp_path) as folder:
        folder.fail("call", Path("/in/call"), "it is empty", 1)
        assert folder.has_failed("call")
        assert '"error": "it is empty"' in (tmp_path / "_failed" / "call.json").read_text()
        assert ids(folder) == []
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
        write(folder, "b.wav")
        write_json(tmp_path / "b.wav" / CALL_FILE, record("b.wav"))
        errors: list[RequestError] = []
        assert [found.id for _, found in folder.calls(errors.append)] == ["b.wav"]
        assert "a.wav/call.json" in str(errors[0])


def test_recordings_are_found_by_their_endings(tmp_path: Path) -> None:
    for name in ("b.WAV", "a/c.mp3", "notes.txt", ".hidden.wav", ".git/d.wav"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    results = tmp_path / "results"
    found = recordings(tmp_path, settled=False, results=results)
    assert [call for call, _ in found] == ["b.WAV", "a/c.mp3"]
    assert list(recordings(tmp_path, settled=True, results=results)) == []


def test_results_among_the_recordings_are_no_recordings(tmp_path: Path) -> None:
    for name in ("a.wav", "out/a.wav/redacted.wav", "out2/b.wav"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    found = recordings(tmp_path, settled=False, results=tmp_path / "link")
    assert [call for call, _ in found] == ["a.wav", "out2/b.wav"]


def test_a_name_that_is_not_utf8_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / os.fsdecode(b"M\xfcller.wav")).touch()
    found = recordings(tmp_path, settled=False, results=tmp_path / "results")
    assert [call for call, _ in found] == ["a.wav"]
    assert "its name is not UTF-8; rename it" in caplog.text


def test_another_recording_of_the_same_name_is_not_taken_for_done(tmp_path: Path) -> None:
    with CallFolder(tmp_path / "results") as folder:
        folder.check_same("a.wav", Path("/other/a.wav"))
        write(folder, "a.wav")
        write_json(tmp_path / "results" / "a.wav" / CALL_FILE, record("a.wav"))
        folder.check_same("a.wav", Path("/in/a.wav"))
        with pytest.raises(SettingsError, match=r"has results of /in/a\.wav"):
            folder.check_same("a.wav", Path("/other/a.wav"))


def test_results_are_their_owners_alone_and_not_among_the_failures(tmp_path: Path) -> None:
    with CallFolder(tmp_path / "results") as folder:
        assert folder.root.stat().st_mode & 0o777 == 0o700
        with pytest.raises(RequestError, match="rename it"):
            write(folder, "_failed/a.wav")
