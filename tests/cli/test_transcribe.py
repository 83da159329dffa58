"""galley transcribe and galley eval speech, as processes on a tiny checkpoint."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import srt

from galley.speech.audio import Recording
from tests.missing import without
from tests.speech import tiny
from tests.speech.recordings import CALL, encode
from tests.speech.voices import READ, conversation

from .command import environment, galley


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "short.wav"
    path.write_bytes(encode("wav", np.concatenate(list(Recording(CALL)))[32_000:80_000]))
    return path


def model(whisper: Path) -> list[str | Path]:
    return ["--model", whisper, "--threads", "1", "--language", "en"]


def test_captions_of_one_file_are_printed(whisper: Path, short: Path) -> None:
    done = galley("transcribe", short, *model(whisper), "--format", "srt")
    assert done.returncode == 0, done.stderr
    assert list(srt.parse(done.stdout))


def test_a_file_without_a_header_is_read_as_flags_say(
    whisper: Path, short: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "call.pcm"
    raw.write_bytes(short.read_bytes().partition(b"data")[2][4:])
    flags = ["--raw-format", "s16le", "--sample-rate", "16000", "--channels", "1"]
    done = galley("transcribe", raw, *model(whisper), *flags, "--track", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == galley("transcribe", short, *model(whisper)).stdout != ""
    missing = galley("transcribe", raw, *model(whisper), "--raw-format", "s16le")
    assert missing.returncode == 1
    assert "needs sample_rate" in missing.stderr


def test_flags_of_speech_detection_and_channels_are_honored(whisper: Path, short: Path) -> None:
    unheard = galley("transcribe", short, *model(whisper), "--vad-threshold", "1")
    assert (unheard.returncode, unheard.stdout) == (0, "")
    assert "no speech was found" in unheard.stderr
    without = galley("transcribe", short, *model(whisper), "--no-vad", "--vad-pad-ms", "10")
    assert without.returncode == 2
    assert "--vad-pad-ms needs speech detection" in without.stderr
    second = galley("transcribe", short, *model(whisper), "--channel", "2")
    assert second.returncode == 1
    assert "has no channel 2; number of channels: 1" in second.stderr


def test_several_files_are_written_and_a_bad_one_stops_none(
    whisper: Path, short: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.mp3"
    bad.write_text("no music " * 1000)
    arguments = [bad, short, *model(whisper), "--format", "verbose_json"]
    done = galley("transcribe", *arguments, "--output-dir", tmp_path / "out")
    assert done.returncode == 1
    assert "bad.mp3 is not audio" in done.stderr
    answer = json.loads((tmp_path / "out" / "short.json").read_text())
    assert (answer["language"], answer["duration"]) == ("english", 3.0)
    assert answer["segments"]
    assert not (tmp_path / "out" / "bad.json").exists()


def test_several_transcripts_are_written_next_to_their_recordings(
    whisper: Path, short: Path, tmp_path: Path
) -> None:
    recordings = [shutil.copy(short, tmp_path / name) for name in ("one.wav", "two.wav")]
    done = galley("transcribe", *recordings, *model(whisper), "--format", "srt")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for name in ("one", "two"):
        assert list(srt.parse((tmp_path / f"{name}.srt").read_text()))
        assert f"wrote {tmp_path / name}.srt" in done.stderr


def test_files_together_have_the_transcripts_of_each_alone(
    whisper: Path, short: Path, tmp_path: Path
) -> None:
    samples = np.concatenate(list(Recording(CALL)))
    files = []
    for number in range(9):
        files.append(tmp_path / f"{number}.wav")
        part = samples[16_000 * number : 16_000 * (number + 2 + number % 3)]
        files[-1].write_bytes(encode("wav", part))
    missing, empty = tmp_path / "missing.wav", tmp_path / "empty.wav"
    empty.touch()
    flags = [*model(whisper), "--format", "verbose_json", "--word-timestamps"]
    given = [missing, *files[:4], empty, *files[4:]]
    done = galley("transcribe", *given, *flags, "--output-dir", tmp_path / "together")
    assert done.returncode == 1
    assert "missing.wav" in done.stderr
    assert "empty.wav" in done.stderr
    written = sorted(path.name for path in (tmp_path / "together").iterdir())
    assert written == [f"{number}.json" for number in range(9)]
    alone = galley("transcribe", files[8], *flags)
    assert alone.stdout == (tmp_path / "together" / "8.json").read_text()


def test_a_recording_comes_from_the_standard_input(
    whisper: Path, short: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "galley", "transcribe", "-", *map(str, model(whisper))]
    printed = subprocess.run(
        command, input=short.read_bytes(), capture_output=True, timeout=120, env=environment()
    )
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout
    folder = ["--output-dir", str(tmp_path)]
    with short.open("rb") as file:
        written = subprocess.run(
            command + folder, stdin=file, capture_output=True, timeout=120, env=environment()
        )
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "stdin.txt").read_bytes() == printed.stdout


def test_no_recording_is_overwritten(tmp_path: Path) -> None:
    """Arguments that would overwrite something, or are invalid, are refused before anything is loaded."""
    a, b, text = (tmp_path / name for name in ("a.wav", "a.mp3", "a.txt"))
    for files, shown in (
        ((a, b), f"the transcripts of two files would both be written to {text}"),
        ((a, text), f"the transcripts of two files would both be written to {text}"),
        ((text, tmp_path / "b.wav"), f"would overwrite the recording {text}"),
        (("-", "-"), "- was given twice"),
    ):
        done = galley("transcribe", *files)
        assert done.returncode == 2
        assert shown in done.stderr
    empty = galley("transcribe", "-", environ={"GALLEY_MODEL": "galley-demo-speech"})
    assert (empty.returncode, empty.stdout) == (1, "")
    assert "the standard input is empty" in empty.stderr


def test_words_have_times(whisper: Path, short: Path) -> None:
    arguments = ["transcribe", short, *model(whisper), "--word-timestamps", "--format"]
    whole, plain = (
        json.loads(galley(*arguments, format_).stdout) for format_ in ("verbose_json", "json")
    )
    assert plain == {"text": whole["text"], "words": whole["words"]}
    assert "".join(word["word"] for word in whole["words"]) == "".join(whole["text"].split())
    assert whole["segments"][0]["start"] == whole["words"][0]["start"]
    done = galley(*arguments, "srt", "--max-line-width", "12")
    lines = list(srt.parse(done.stdout))
    shown = "".join(line.content for line in lines)
    assert "".join(shown.split()) == "".join(whole["text"].split())
    # A longer word has its own line.
    assert all(len(line.content) <= 12 or " " not in line.content for line in lines)
    for options in (["text"], ["json", "--max-line-width", "12"]):
        assert galley(*arguments, *options).returncode == 2


def test_what_would_overwrite_another_transcript_is_refused(whisper: Path, short: Path) -> None:
    done = galley("transcribe", short, short, *model(whisper), "--output-dir", short.parent)
    assert done.returncode == 2
    assert "the transcripts of two files would both be written to" in done.stderr


def test_without_the_extra_the_error_says_how_to_install_it(short: Path, tmp_path: Path) -> None:
    done = galley("transcribe", short, environ=without(tmp_path, "soxr"))
    assert done.returncode == 2
    assert "pip install 'galley-inference[speech]'" in done.stderr


def test_a_manifest_is_scored(whisper: Path, short: Path, tmp_path: Path) -> None:
    manifest = short.parent / "manifest.jsonl"
    manifest.write_text(json.dumps({"audio": short.name, "text": "Hello"}) + "\n")
    scores = tmp_path / "scores.json"
    done = galley("eval", "speech", manifest, *model(whisper), "--json", scores)
    assert done.returncode == 0, done.stderr
    assert "1 recordings, 3 s: WER " in done.stdout
    page = json.loads(scores.read_text())
    assert page["audio_seconds"] == 3.0
    assert page["recordings"][0]["expected"] == "Hello"


def test_speakers_are_written_as_text_and_rttm(whisper: Path, tmp_path: Path) -> None:
    samples, turns = conversation()
    file = tmp_path / "two people.wav"
    file.write_bytes(encode("wav", samples[: round(turns[1][2] * 16_000)]))
    flags = ["--diarize", "--rttm", "--speaker", f"reader={READ / 'austen-5.flac'}"]
    done = galley("transcribe", file, *model(whisper), *flags, "--format", "diarized_json")
    assert done.returncode == 0, done.stderr
    assert {segment["speaker"] for segment in json.loads(done.stdout)["segments"]} == {
        "reader",
        "A",
    }
    lines = [line.split() for line in file.with_suffix(".rttm").read_text().splitlines()]
    assert [line[:3] + line[7:8] for line in lines] == [
        ["SPEAKER", "two_people", "1", "reader"],
        ["SPEAKER", "two_people", "1", "A"],
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rttm"], "--rttm needs --diarize"),
        (["--diarize", "--speaker", "x=/nowhere"], "cannot read /nowhere"),
    ],
)
def test_flags_of_speakers_are_checked(
    whisper: Path, short: Path, flags: list[str], message: str
) -> None:
    done = galley("transcribe", short, *model(whisper), *flags)
    assert done.returncode != 0
    assert message in done.stderr
