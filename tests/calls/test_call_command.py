"""galley call and galley calls as processes: one result a recording, through kills, without secrets."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.observe.audit import verify
from galley.redact.find import find_spans
from galley.redact.spans import KINDS
from galley.speech.audio import Recording, Samples
from galley.speech.transcribe import Transcriber
from tests.cli.command import galley, start_galley
from tests.speech.recordings import CALL, encode
from tests.speech.tiny import make_whisper
from tests.speech.voices import READ

pytestmark = pytest.mark.xdist_group("call_command")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whisper(tmp_path_factory.mktemp("whisper"))


def model(whisper: Path) -> list[str | Path]:
    flags = ["--threads", "1", "--language", "en", "--beam-size", "1", "--temperature", "0"]
    return ["--model", whisper, *flags]


def spoken() -> Samples:
    return np.concatenate(list(Recording(READ / "austen-5.flac")))


def lines(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines()]


def test_each_recording_has_one_result_through_a_kill(whisper: Path, tmp_path: Path) -> None:
    inbox, results, audit = tmp_path / "inbox", tmp_path / "results", tmp_path / "audit.jsonl"
    (inbox / "monday").mkdir(parents=True)
    sound = spoken()
    good = {"one.wav", "two.wav", "monday/three.wav"}
    for name in good:
        (inbox / name).write_bytes(encode("wav", sound))
    (inbox / "broken.wav").write_bytes(b"RIFF")
    command = ["call", inbox, "--output-dir", results, "--audit-log", audit, *model(whisper)]
    watching = start_galley(*command, "--watch")
    try:
        deadline = time.monotonic() + 60
        while not list(results.glob("**/call.json")):
            assert watching.poll() is None, watching.stdout and watching.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        watching.kill()
        watching.wait()
    done = galley(*command, "--retry-failed")
    assert done.returncode == 1
    assert "broken.wav" in done.stderr
    records = [json.loads(path.read_text()) for path in results.glob("**/call.json")]
    assert {record["id"] for record in records} == good
    assert len(records) == len(good)
    assert {path.relative_to(results).as_posix() for path in results.glob("_failed/**/*.json")} == {
        "_failed/broken.wav.json"
    }
    again = galley(*command)
    assert again.returncode == 0
    verify(audit)
    entries = lines(audit)
    finished = [line["call"] for line in entries if line.get("status") == "done"]
    # A line may be missing of the call that was complete when the process was killed.
    assert len(finished) == len(set(finished)) >= len(good) - 1
    swept = galley("calls", "sweep", results, "--keep", "transcript=0d", "--audit-log", audit)
    assert swept.stdout == "deleted 6 files\n", swept.stderr
    removed = galley("calls", "delete", results, "monday/three.wav", "--recording")
    assert removed.stdout == "deleted 2 files\n", removed.stderr
    assert not (inbox / "monday/three.wav").exists()


def test_secrets_are_in_no_file(tmp_path: Path) -> None:
    with Transcriber(threads=1) as transcriber:
        segments = list(transcriber.transcribe(CALL))
    text = "".join(segment.text for segment in segments)
    secrets = [text[span.start : span.end] for span in find_spans(text, KINDS, set())]
    assert secrets
    results, audit = tmp_path / "results", tmp_path / "audit.jsonl"
    flags: list[str | Path] = ["--redact", "all", "--redacted-audio", "--audit-log", audit]
    done = galley("call", CALL, "--output-dir", results, *flags, "--tenant", "acme", "--threads", 1)
    assert done.returncode == 0, done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [done.stdout.encode(), done.stderr.encode()]
    for secret in secrets:
        assert not any(secret.encode() in content for content in written), secret
    [folder] = [path.parent for path in results.glob("**/call.json")]
    record = json.loads((folder / "call.json").read_text())
    assert sum(record["redacted"].values()) == len(secrets)
    assert (record["tenant"], record["speakers"] >= 1) == ("acme", True)
    transcript = json.loads((folder / "transcript.json").read_text())
    assert {"speaker", "text"} <= set(transcript["segments"][0])
    assert (folder / "redacted.wav").exists()
    assert json.loads((folder / "quality.json").read_text())["mean_logprob"] < 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--watch"], "--watch needs a folder"),
        (["--redacted-audio"], "--redacted-audio needs --redact"),
        (["--ticket-model", "m"], "--ticket-model needs --ticket-url"),
        (["--ticket-url", "ftp://x", "--ticket-model", "m"], "is not a URL"),
        (
            ["--ticket-url", "http://x", "--ticket-model", "m", "--ticket-schema", "{}/list.json"],
            "expected a JSON object",
        ),
    ],
)
def test_flags_that_cannot_be_honored_are_refused(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    file = tmp_path / "a.wav"
    file.touch()
    (tmp_path / "list.json").write_text("[]")
    given = [flag.format(tmp_path) for flag in flags]
    done = galley("call", file, "--output-dir", tmp_path / "results", *given)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
