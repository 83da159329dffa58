"""A thousand calls through a watched folder, with kills: one result each."""

import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from galley.observe.audit import verify
from galley.speech.audio import Recording
from tests import thorough
from tests.cli.command import galley, start_galley
from tests.speech.recordings import encode
from tests.speech.tiny import make_whisper
from tests.speech.voices import READ

pytestmark = pytest.mark.xdist_group("thousand_calls")

COUNT = 1000
BROKEN = 10
KILLS = 20
STALL_SECONDS = 300.0
RATE = 16_000


@thorough.long
@pytest.mark.timeout(3600)
def test_each_of_a_thousand_calls_has_one_result_through_kills(tmp_path: Path) -> None:
    inbox, results, audit = tmp_path / "inbox", tmp_path / "results", tmp_path / "audit.jsonl"
    inbox.mkdir()
    whisper = make_whisper(tmp_path / "whisper")
    sound = np.concatenate(list(Recording(READ / "austen-2.flac")))[: 2 * RATE]
    # Two channels with different sounds need no search for speakers, which would be most of the time.
    call = encode("wav", sound, sound[::-1].copy())
    names = {f"{number % 7}/{number:04}.wav" for number in range(COUNT)}
    broken = {f"broken-{number}.wav" for number in range(BROKEN)}
    for name in names | broken:
        path = inbox / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"RIFF" if name in broken else call)
    flags = ["--threads", "1", "--language", "en", "--beam-size", "1", "--temperature", "0"]
    command: list[str | Path] = [
        "call",
        inbox,
        "--output-dir",
        results,
        "--audit-log",
        audit,
        "--model",
        whisper,
    ]
    draw = random.Random(0)
    complete = 0
    for _ in range(KILLS):
        watching = start_galley(*command, *flags, "--watch")
        try:
            # Kill it in the middle of a call, anywhere within the next few per cent of the work.
            wanted = complete + draw.randint(1, COUNT // KILLS)
            complete = wait_for(results, wanted)
            time.sleep(draw.uniform(0.0, 0.1))
            assert watching.poll() is None, watching.stdout and watching.stdout.read()
        finally:
            watching.kill()
            watching.wait()
    done = galley(*command, *flags, timeout=3600)
    assert done.returncode in (0, 1), done.stderr
    records = [json.loads(path.read_text()) for path in results.glob("[0-9]/*/call.json")]
    assert Counter(record["id"] for record in records) == Counter(names)
    for path in results.glob("[0-9]/*/call.json"):
        files = {file.name for file in path.parent.iterdir()}
        assert files == {"call.json", "transcript.json", "transcript.txt", "quality.json"}, path
    assert has_failed(results, broken)
    assert not list((results / ".partial").glob("*"))
    verify(audit)
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    finished = Counter(line["call"] for line in entries if line.get("status") == "done")
    # The line of a call may be missing if its results were complete when the process was killed.
    assert set(finished) <= names
    assert max(finished.values()) == 1
    assert len(finished) >= COUNT - KILLS
    shutil.rmtree(results)


def has_failed(results: Path, broken: set[str]) -> bool:
    """Return whether all broken recordings, and no others, were given up."""
    found = {
        path.relative_to(results / "_failed").as_posix()
        for path in results.glob("_failed/**/*.json")
    }
    return found == {f"{name}.json" for name in broken}


def wait_for(results: Path, wanted: int) -> int:
    """Wait until this many calls are complete, and return how many are; fail if none is for minutes."""
    last, since = -1, time.monotonic()
    while True:
        count = sum(1 for _ in results.glob("[0-9]/*/call.json"))
        if count >= wanted:
            return count
        if count != last:
            last, since = count, time.monotonic()
        assert time.monotonic() - since < STALL_SECONDS, f"no progress after {count} calls"
        time.sleep(0.05)
