"""Music and key tones in recordings: what is found, what is not, and recordings without them."""

from pathlib import Path

import numpy as np
import pytest

from galley.speech.audio import Recording, Samples
from galley.speech.dtmf import KeyTones
from galley.speech.non_speech import Silenced, find_sounds
from galley.speech.sources import RawPcm
from tests import real
from tests.speech.sounds import KEYS, over_a_telephone, press, tune
from tests.speech.voices import READ

RATE = 16_000
PEOPLE = ("jfk.flac", *(f"trn0{number}.wav" for number in range(1, 6)))


def pressed(samples: Samples, block: int = RATE) -> list[tuple[float, float]]:
    tones = KeyTones()
    for start in range(0, len(samples), block):
        tones.feed(samples[start : start + block])
    return tones.finish()


def of(samples: Samples) -> Recording:
    pcm = np.clip(samples * 32_767, -32_767, 32_767).astype("<i2").tobytes()
    return Recording(pcm, raw=RawPcm(RATE))


def read(path: Path) -> Samples:
    return np.concatenate(list(Recording(path)))


@pytest.mark.parametrize("line", [False, True])
def test_every_key_is_found_within_the_limits_of_receivers(line: bool) -> None:
    for row, column in KEYS:
        for limits in (
            {"ms": 40},
            {"ms": 80, "off": 1.015, "twist": 6},
            {"ms": 80, "off": 0.985, "twist": -6},
        ):
            tone = press(row, column, **limits)
            [(start, end)] = pressed(over_a_telephone(tone) if line else tone)
            long = limits["ms"] / 1000
            assert 0.2 - 0.025 <= start <= 0.2, (row, column, limits)
            assert 0.2 + long <= end <= 0.2 + long + 0.025, (row, column, limits)


def test_what_receivers_must_reject_is_no_key() -> None:
    for row, column in KEYS:
        for limits in (
            {"ms": 20},
            {"ms": 80, "off": 1.035},
            {"ms": 80, "off": 0.965},
            {"ms": 80, "twist": 12},
            {"ms": 80, "level": -60},
        ):
            assert pressed(press(row, column, **limits)) == [], (row, column, limits)
    assert pressed(press(440, 480, 2000)) == []  # a telephone that rings


def test_keys_are_found_in_blocks_of_any_size() -> None:
    number = np.concatenate([press(row, column, 60) for row, column in KEYS])
    found = pressed(number)
    assert len(found) == len(KEYS)
    assert pressed(number, block=37) == pressed(number, block=len(number)) == found


def test_music_is_found_between_speech() -> None:
    speech = read(READ / "austen-1.flac")
    speech = speech * np.float32(0.3 / np.abs(speech).max())
    for line in (False, True):
        call = np.concatenate([speech, tune(12), speech])
        found = find_sounds(of(over_a_telephone(call) if line else call))
        assert found.keys == ()
        [(start, end)] = found.music
        begin = len(speech) / RATE
        assert start == pytest.approx(begin, abs=2)
        assert end == pytest.approx(begin + 12, abs=2)


def test_silence_noise_and_short_sounds_are_no_music() -> None:
    noise = np.random.default_rng(0).normal(size=10 * RATE)
    for samples in (
        np.zeros(10 * RATE),
        0.05 * noise,
        np.concatenate([0 * noise, tune(2), 0 * noise]),
    ):
        assert find_sounds(of(samples.astype(np.float32))) == ((), ())
    assert find_sounds(of(np.zeros(10, np.float32))) == ((), ())


@pytest.fixture(params=PEOPLE)
def people(request: pytest.FixtureRequest) -> Samples:
    return real.recording(str(request.param))


def test_people_are_neither_music_nor_keys(people: Samples) -> None:
    assert find_sounds(of(people)) == ((), ())


def test_readers_are_neither_music_nor_keys() -> None:
    readings = np.concatenate([read(path) for path in sorted(READ.glob("*.flac"))])
    for samples in (readings, over_a_telephone(readings)):
        assert find_sounds(of(samples)) == ((), ())


def test_only_the_passages_are_silenced() -> None:
    noise = np.random.default_rng(0).normal(size=3 * RATE).astype(np.float32) * 0.1
    recording = Silenced(of(noise), [(0.5, 1.25), (2.0, 9.0)])
    found = np.concatenate(list(recording))
    plain = np.concatenate(list(of(noise)))
    assert recording.seconds == 3.0
    recording.close()
    assert not found[RATE // 2 : RATE * 5 // 4 + 1].any()
    assert not found[2 * RATE :].any()
    kept = [slice(0, RATE // 2), slice(RATE * 5 // 4 + 1, 2 * RATE)]
    assert all((found[part] == plain[part]).all() for part in kept)
