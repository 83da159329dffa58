"""PCM of a live stream, decoded as FFmpeg does, however it is split."""

import itertools
import math

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from galley.speech.audio import RawPcm, Recording
from galley.speech.pcm import Coding, PcmStream


@pytest.mark.parametrize("coding", ["s16le", "mulaw", "alaw"])
def test_samples_are_ffmpegs(coding: Coding) -> None:
    data = bytes(range(256)) * 100
    expected = np.concatenate(
        list(Recording(data, raw=RawPcm(sample_rate=16_000, type=coding), sample_rate=16_000))
    )
    found = np.concatenate(list(PcmStream(coding, 16_000).feed(data)))
    np.testing.assert_array_equal(found, expected)


RATES = [8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 24_001]


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=8), st.sampled_from(RATES))
def test_parts_make_no_difference(cuts: list[int], rate: int) -> None:
    whole = (np.sin(np.arange(sum(cuts)) / 10) * 10_000).astype("<i2")
    stream = PcmStream("s16le", rate)
    parts = np.split(whole, np.cumsum(cuts)[:-1])
    blocks = [block for part in parts for block in stream.feed(part.tobytes())]
    found = np.concatenate([*blocks, stream.flush()])
    expected = soxr.resample(whole.astype(np.float32) / 32_768, rate, 16_000, quality="HQ")
    assert len(found) == len(expected)
    # soxr treats the stream's edges in its own way.
    np.testing.assert_allclose(found[64:-64], expected[64:-64], atol=1e-3)
    at_once = PcmStream("s16le", rate)
    uncut = np.concatenate([*at_once.feed(whole.tobytes()), at_once.flush()])
    np.testing.assert_allclose(found, uncut, atol=1e-5)


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 44_100, 48_000])
def test_little_is_held_back(rate: int) -> None:
    stream = PcmStream("s16le", rate)
    given_ms = found = 0
    for _ in range(50):
        found += sum(len(block) for block in stream.feed(bytes(2 * (rate // 50))))
        given_ms += 20
        period = rate // math.gcd(rate, 16_000) / rate
        assert given_ms - found / 16 <= 5 + 1_000 * period


@pytest.mark.parametrize("rate", [22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize(("hertz", "passes"), [(300, True), (6_500, True), (9_500, False)])
def test_speech_passes_and_nothing_folds_back(rate: int, hertz: int, passes: bool) -> None:
    stream = PcmStream("s16le", rate)
    tone = np.round(np.sin(2 * np.pi * hertz * np.arange(rate) / rate) * 30_000).astype("<i2")
    found = np.concatenate([*stream.feed(tone.tobytes()), stream.flush()])[1_000:-1_000]
    level = np.sqrt(2 * np.mean(found**2)) * 32_768 / 30_000
    assert level == pytest.approx(1.0, abs=0.01) if passes else level < 0.001


def test_a_stream_begins_anew_after_a_flush() -> None:
    stream = PcmStream("s16le", 24_000)
    data = np.arange(4_800, dtype="<i2").tobytes()
    once, again = (np.concatenate([*stream.feed(data), stream.flush()]) for _ in range(2))
    np.testing.assert_array_equal(once, again)


@given(st.lists(st.integers(0, 700), max_size=12), st.sampled_from([16_000, 24_000]))
def test_a_message_may_end_within_a_sample(cuts: list[int], rate: int) -> None:
    data = (np.sin(np.arange(1_000) / 10) * 10_000).astype("<i2").tobytes()
    places = sorted(min(cut, len(data)) for cut in cuts)
    parts = [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]
    streams = [PcmStream("s16le", rate) for _ in range(2)]
    whole = np.concatenate([*streams[0].feed(data), streams[0].flush()])
    blocks = [block for part in parts for block in streams[1].feed(part)]
    np.testing.assert_allclose(np.concatenate([*blocks, streams[1].flush()]), whole, atol=1e-6)


def test_blocks_are_a_second_at_most() -> None:
    blocks = list(PcmStream("s16le", 16_000).feed(bytes(2 * 40_000)))
    assert [len(block) for block in blocks] == [16_000, 16_000, 8_000]
