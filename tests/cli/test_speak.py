"""galley speak with a tiny voice: as a process, and for the rest in the test's own."""

import json
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from galley.cli.main import app
from tests.runtimes import voice_files

from .command import environment

TEXT = "one, two. three!"


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voice_files.voice(tmp_path_factory.mktemp("voice") / "ada.onnx", speakers=True)


def run(*args: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [*map(str, args)], input=stdin)


def test_the_standard_output_and_a_file_get_the_same_audio(voice: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "galley", "speak", TEXT, "--model", str(voice)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment())
    assert done.stdout[:4] == b"RIFF"
    wav = tmp_path / "said.wav"
    assert f"wrote {wav}" in run("speak", "-", "--model", voice, "-o", wav, stdin=TEXT).output
    assert done.stdout[44:] == wav.read_bytes()[44:]
    with wave.open(str(wav)) as file:
        assert file.getframerate() == voice_files.RATE
        assert len(file.readframes(file.getnframes())) == 2 * file.getnframes() > 0


def test_the_format_follows_the_suffix_or_the_option(voice: Path, tmp_path: Path) -> None:
    flac, raw = tmp_path / "said.FLAC", tmp_path / "said.bin"
    run("speak", TEXT, "--model", voice, "-o", flac, "--voice", "bob", "--speed", "2")
    assert flac.read_bytes()[:4] == b"fLaC"
    run("speak", TEXT, "--model", voice, "-o", raw, "--format", "mp3")
    assert raw.read_bytes()[0] == 0xFF  # the first byte of a frame


def test_a_refused_text_leaves_an_earlier_file_as_it_is(voice: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.wav"
    file.write_bytes(b"earlier")
    for flags in (["--voice", "eve"], ["--speed", "9"]):
        assert run("speak", TEXT, "--model", voice, "-o", file, *flags).exit_code != 0
    assert run("speak", "...", "--model", voice, "-o", file).exit_code != 0
    assert file.read_bytes() == b"earlier"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--output", "said.txt"], "the suffix is not one of .mp3"),
        (["--output", "no/said.wav"], "the folder no does not exist"),
        (["--voice", "eve"], "has no voice 'eve'; it has ada, bob, default"),
        (["--speed", "9"], "9.0 is not in the range 0.25<=x<=4.0"),
        (["--model", ""], "no voice is bundled"),
    ],
)
def test_what_is_wrong_is_named(
    voice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("speak", TEXT, "--model", voice, *flags)
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_extra_is_named_where_it_is_missing(
    voice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = run("speak", TEXT, "--model", voice)
    assert "galley-inference[voice]" in str(done.exception)


def test_the_benchmark_reports_both_figures(voice: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    text = "one two three."
    flags = ["--text", text, "--repeats", "2", "--json"]
    done = run("bench", "speak", voice, *flags, figures)
    assert "first audio, ms" in done.output
    found = json.loads(figures.read_text(encoding="utf-8"))["speech"]
    phonemes = 2 * len(text) + 3
    samples = phonemes * voice_files.FRAMES_OF_PHONEME * voice_files.HOP
    assert found["audio_seconds"]["median"] == pytest.approx(samples / voice_files.RATE)
    assert found["words"] == 3
    first = found["first_audio_seconds"]["low"] / found["audio_seconds"]["low"]
    assert 0 < first <= found["real_time_factor"]["high"]
