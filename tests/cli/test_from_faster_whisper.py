"""The page for users of faster-whisper: its programs and its command run, and transcribe the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import real
from tests.cli.command import galley
from tests.speech.recordings import encode

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("from_faster_whisper")]

PAGE = Path(__file__).parents[2] / "docs/how-to/from-faster-whisper.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
[COMMAND] = re.findall(r"`galley (transcribe .*?)`", PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("faster_whisper")
    path = tmp_path_factory.mktemp("recordings") / "call.wav"
    path.write_bytes(encode("wav", real.recording("jfk.flac")))
    return path


def on_this_machine(text: str, recording: Path) -> str:
    """Return a program or command with the folder of a model for its name."""
    text = re.sub(r"(openai/whisper-)?tiny\.en", str(real.whisper()), text)
    return text.replace("call.wav", str(recording))


def test_both_programs_hear_the_same(recording: Path) -> None:
    assert len(PROGRAMS) == 2
    said = []
    for program in PROGRAMS:
        done = subprocess.run(
            [sys.executable, "-c", on_this_machine(program, recording)],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
        assert all(0 <= float(start) < float(end) <= 11.1 for start, end, _ in lines)
        said.append(real.words(" ".join(text for *_, text in lines)))
    assert said[0] == said[1] == real.words(real.JFK)


def test_the_command_hears_the_same(recording: Path) -> None:
    done = galley(*on_this_machine(COMMAND, recording).split(), "--threads", "1")
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout)
    assert real.words(heard["text"]) == real.words(real.JFK)
    assert all(word["start"] < word["end"] for word in heard["words"])
