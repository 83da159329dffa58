"""A recording that is decoded once has the samples that decoding it again and again would give."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from galley.errors import AudioError, EngineNotReady
from galley.speech.audio import Samples
from galley.speech.decoder import Audio, Decoder
from galley.speech.kept import KeptRecording
from galley.speech.sources import RawPcm
from tests.speech.recordings import encode
from tests.speech.sounds import tune

RATE = 16_000


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder() as decoder:
        yield decoder


@pytest.fixture(scope="module")
def sides() -> tuple[Samples, Samples]:
    chance = np.random.default_rng(0)
    noise = (chance.normal(size=len(tune(3))) * 0.1).astype(np.float32)
    return tune(3), noise


def joined(audio: Audio) -> Samples:
    return np.concatenate(list(audio))


@pytest.mark.parametrize("kind", ["wav", "wav-telephone", "mp3"])
def test_both_channels_are_those_of_separate_decodings(
    decoder: Decoder, sides: tuple[Samples, Samples], kind: str
) -> None:
    file = encode(kind, *sides)
    with KeptRecording(decoder.open(file, apart=True)) as kept:
        assert kept.channels == 2
        for channel in (1, 2):
            assert np.array_equal(
                joined(kept.open(channel)), joined(decoder.open(file, channel=channel))
            )
        mixed = joined(decoder.open(file))
        assert np.allclose(joined(kept.open()), mixed, atol=1e-5)
        again = kept.open()
        joined(again)
        assert again.seconds == len(mixed) / RATE


@pytest.mark.parametrize("count", [1, 3])
def test_other_numbers_of_channels_are_mixed(
    decoder: Decoder, sides: tuple[Samples, Samples], count: int
) -> None:
    file = np.stack((sides * 2)[:count], axis=1).tobytes()
    raw = RawPcm(RATE, count, "f32le")
    with KeptRecording(decoder.open(file, raw=raw, apart=True)) as kept:
        assert kept.channels == count
        assert np.array_equal(joined(kept.open()), joined(decoder.open(file, raw=raw)))


def test_channels_of_opposite_phase_are_not_lost_in_the_mix(decoder: Decoder) -> None:
    file = encode("wav", tune(2), -tune(2))
    with KeptRecording(decoder.open(file, apart=True)) as kept:
        assert np.abs(joined(kept.open())).max() > 0.1


def test_what_was_wrong_with_the_file_is_kept(decoder: Decoder) -> None:
    whole = encode("wav", tune(3))
    with KeptRecording(decoder.open(whole[: len(whole) // 2], apart=True)) as kept:
        assert any("truncated" in warning for warning in kept.open().warnings)
    with pytest.raises(AudioError):
        KeptRecording(decoder.open(b"RIFF", apart=True))


def test_no_space_is_named_and_may_be_tried_again(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        with pytest.raises(EngineNotReady, match="No space left on device; set TMPDIR"):
            KeptRecording(decoder.open(encode("wav", tune(1)), apart=True))


def test_a_temporary_file_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Decoder(most=1) as decoder:
        recording = decoder.open(encode("wav", tune(1)), apart=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(EngineNotReady, match="missing: No such file or directory; set TMPDIR"):
            KeptRecording(recording)
        monkeypatch.undo()
        decoder.open(encode("wav", tune(1))).close()
