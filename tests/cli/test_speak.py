"""galley speak, as a process with a tiny voice."""

import json
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from tests.missing import without
from tests.runtimes import voice_files

from .command import environment, galley

TEXT = "one, two. three!"


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voice_files.voice(tmp_path_factory.mktemp("voice") / "ada.onnx", speakers=True)


def test_a_file_is_written_in_the_format_of_its_suffix(voice: Path, tmp_path: Path) -> None:
    wav, flac = tmp_path / "said.wav", tmp_path / "said.FLAC"
    done = galley("speak", TEXT, "--model", voice, "--output", wav, "--voice", "bob")
    assert done.returncode == 0, done.stderr
    assert f"wrote {wav}" in done.stderr
    with wave.open(str(wav)) as file:
        assert file.getframerate() == voice_files.RATE
        assert len(file.readframes(file.getnframes())) == 2 * file.getnframes() > 0
    galley("speak", "-", "--model", voice, "-o", flac, stdin=TEXT)
    assert flac.read_bytes()[:4] == b"fLaC"


def test_the_standard_output_gets_the_audio(voice: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "galley", "speak", TEXT, "--model", str(voice)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment())
    assert done.stdout[:4] == b"RIFF"
    wav = tmp_path / "said.wav"
    galley("speak", TEXT, "--model", voice, "-o", wav)
    assert done.stdout[44:] == wav.read_bytes()[44:]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--output", "said.txt"], "the suffix is none of .mp3"),
        (["--output", "no/said.wav"], "the folder no does not exist"),
        (["--voice", "eve"], "has no voice 'eve'; it has ada, bob, default"),
        (["--speed", "9"], "9.0 is not in the range 0.25<=x<=4.0"),
        (["--model", ""], "no voice is bundled"),
    ],
)
def test_what_is_wrong_is_named(voice: Path, tmp_path: Path, flags: list[str], says: str) -> None:
    done = galley("speak", TEXT, "--model", voice, *flags, cwd=tmp_path)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_reports_both_figures(voice: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    text = "one two three."
    flags = ["--text", text, "--repeats", "2"]
    done = galley("bench", "speak", voice, *flags, "--json", figures)
    assert done.returncode == 0, done.stderr
    assert "first audio, ms" in done.stdout
    found = json.loads(figures.read_text(encoding="utf-8"))["speech"]
    phonemes = 2 * len(text) + 3
    samples = phonemes * voice_files.FRAMES_OF_PHONEME * voice_files.HOP
    assert found["audio_seconds"]["median"] == pytest.approx(samples / voice_files.RATE)
    assert found["words"] == 3
    first = found["first_audio_seconds"]["low"] / found["audio_seconds"]["low"]
    assert 0 < first <= found["real_time_factor"]["high"]


def test_the_extra_is_named_where_it_is_missing(voice: Path, tmp_path: Path) -> None:
    done = galley("speak", TEXT, "--model", voice, environ=without(tmp_path, "onnx"))
    assert "galley-inference[voice]" in done.stderr
