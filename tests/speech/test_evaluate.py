"""Error rates count differing words, and nothing else."""

import json
from pathlib import Path

import pytest

from galley.errors import RequestError
from galley.speech.evaluate import ManifestEntry, Transcribed, plain_text, read_manifest, score


def heard(said: str, text: str, audio_seconds: float = 10.0, seconds: float = 1.0) -> Transcribed:
    return Transcribed(ManifestEntry(Path("a.wav"), said), text, audio_seconds, seconds)


def test_case_and_punctuation_are_no_errors() -> None:
    scores = score([heard("Hello, it's MARIA — again.", "hello its maria again")])
    assert (scores.wer, scores.cer) == (0.0, 0.0)


def test_errors_are_counted_over_all_words() -> None:
    """One word wrong, one missing, one extra, of 8; jiwer's own definition."""
    scores = score(
        [
            heard("one two three four", "one too three"),
            heard("five six seven eight", "five six seven eight nine"),
            heard("", ""),
        ]
    )
    assert scores.wer == 3 / 8
    assert scores.audio_seconds == 30.0
    assert scores.real_time_factor == pytest.approx(0.1)


def test_words_in_silence_are_errors() -> None:
    assert score([heard("one two", "one two"), heard("", "thank you")]).wer == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" Über-\nmorgen!", "über morgen"), ("Straße № 5", "strasse no 5"), ("你好。", "你好")],
)
def test_plain_text(text: str, expected: str) -> None:
    assert plain_text(text) == expected


def test_a_manifest_names_recordings_in_its_folder(tmp_path: Path) -> None:
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(json.dumps({"audio": "a/b.wav", "text": "Hi"}) + "\n\n")
    assert read_manifest(manifest) == [ManifestEntry(tmp_path / "a" / "b.wav", "Hi")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no entry"),
        ('{"audio": "a.wav", "text": "..."}', "no entry"),
        ('{"audio": "a.wav", "text": "x"}\n{"audio": "b.wav"}', "line 2: needs audio and text"),
        ("[1]", "line 1: needs audio and text"),
        ("nonsense", "line 1: needs audio and text"),
        ('{"audio": 1, "text": "x"}', "line 1: audio and text must be strings"),
    ],
)
def test_a_wrong_manifest_is_reported_with_its_line(
    content: str, message: str, tmp_path: Path
) -> None:
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(content)
    with pytest.raises(RequestError, match=message):
        read_manifest(manifest)
    with pytest.raises(RequestError, match="cannot read"):
        read_manifest(tmp_path / "none.jsonl")
