"""Chunks contain all speech once, in order, within the limit, however the input is split into blocks."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.chunks import AudioChunk, chunk_audio
from galley.speech.options import SpeechOptions
from galley.speech.segmenter import VAD_FRAME, AllSpeech, SpeechSegment
from tests.thorough import examples

RATE = 16_000
OPTIONS = SpeechOptions(min_speech_ms=100, min_silence_ms=300, pad_ms=100)
PAD = 100 * 16


class Given:
    """A detector with given probabilities."""

    def __init__(self, probabilities: NDArray[np.float32]) -> None:
        self._probabilities = probabilities
        self._samples = self._returned = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        self._samples += len(samples)
        return self._until(self._samples // VAD_FRAME)

    def finish(self) -> NDArray[np.float32]:
        return self._until(-(-self._samples // VAD_FRAME))

    def _until(self, frame: int) -> NDArray[np.float32]:
        begin, self._returned = self._returned, frame
        return self._probabilities[begin:frame]


@st.composite
def recordings(draw: st.DrawFn) -> tuple[NDArray[np.float32], int]:
    """Return (probability of each frame, samples): runs of speech, doubt and silence of any length."""
    levels = st.sampled_from([0.0, 0.2, 0.4, 0.45, 0.6, 1.0])
    runs = draw(st.lists(st.tuples(levels, st.integers(1, 120)), max_size=30))
    frames = np.repeat([level for level, _ in runs], [length for _, length in runs])
    missing = draw(st.integers(0, VAD_FRAME - 1)) if len(frames) else 0
    return frames.astype(np.float32), len(frames) * VAD_FRAME - missing


def cut(
    recording: tuple[NDArray[np.float32], int], limit: float, block: int = RATE
) -> list[AudioChunk]:
    """Cut samples that are their own positions, so that the content of each chunk is visible."""
    probabilities, length = recording
    places = np.arange(length, dtype=np.float32)
    blocks = (places[first : first + block] for first in range(0, length, block))
    return list(chunk_audio(blocks, limit, OPTIONS, Given(probabilities)))


def all_segments(found: list[AudioChunk]) -> Iterator[SpeechSegment]:
    return itertools.chain.from_iterable(chunk.segments for chunk in found)


def speech_frames(probabilities: NDArray[np.float32]) -> Iterator[tuple[int, int]]:
    """Yield frames (first, past the last) of speech that no rule may drop.

    They are at 0.5 or more for over 100 ms, even if the last of them is incomplete.
    """
    for speech, run in itertools.groupby(enumerate(probabilities), key=lambda at: at[1] >= 0.5):
        frames = [frame for frame, _ in run]
        if speech and (len(frames) - 1) * VAD_FRAME >= 100 * 16:
            yield frames[0], frames[-1] + 1


@settings(max_examples=examples(300), deadline=None)
@given(recordings(), st.sampled_from([1.0, 2.5, 8.0, 30.0]))
def test_chunks_hold_all_speech_in_order_and_fit(
    recording: tuple[NDArray[np.float32], int], limit: float
) -> None:
    found = cut(recording, limit)
    probabilities, length = recording
    end = 0
    for segment in all_segments(found):
        assert 0 <= segment.start < segment.end <= length
        assert segment.start == end - segment.overlap if segment.overlap else segment.start >= end
        assert segment.overlap <= min(3.0, limit / 6) * RATE
        end = segment.end
    for chunk in found:
        assert len(chunk.samples) <= limit * RATE
        held = np.concatenate([np.arange(segment.start, segment.end) for segment in chunk.segments])
        np.testing.assert_array_equal(chunk.samples, held.astype(np.float32))
        assert all(segment.overlap == 0 for segment in chunk.segments[1:])
    covered = np.zeros(length + VAD_FRAME, bool)
    for segment in all_segments(found):
        covered[segment.start : segment.end] = True
    covered[length:] = True
    for first, beyond in speech_frames(probabilities):
        assert covered[first * VAD_FRAME : beyond * VAD_FRAME].all()


@settings(max_examples=examples(100), deadline=None)
@given(recordings(), st.sampled_from([1.0, 8.0]), st.sampled_from([100, VAD_FRAME, 5_000]))
def test_chunks_do_not_depend_on_how_the_recording_is_cut_into_blocks(
    recording: tuple[NDArray[np.float32], int], limit: float, block: int
) -> None:
    whole, parts = cut(recording, limit), cut(recording, limit, block)
    assert [chunk.segments for chunk in whole] == [chunk.segments for chunk in parts]


@settings(max_examples=examples(100), deadline=None)
@given(recordings(), st.sampled_from([1.0, 8.0]))
def test_times_in_a_chunk_lead_back_to_the_recording(
    recording: tuple[NDArray[np.float32], int], limit: float
) -> None:
    for chunk in cut(recording, limit):
        for sample, place in enumerate(chunk.samples[:: VAD_FRAME // 2]):
            seconds = sample * (VAD_FRAME // 2) / RATE
            assert chunk.recording_time(seconds) * RATE == pytest.approx(float(place))
        length = len(chunk.samples) / RATE
        assert chunk.recording_time(length, end=True) == chunk.segments[-1].end / RATE
        first = (chunk.segments[0].end - chunk.segments[0].start) / RATE
        assert chunk.recording_time(first, end=True) == chunk.segments[0].end / RATE


def levels(*runs: tuple[float, float]) -> tuple[NDArray[np.float32], int]:
    """Return the probabilities of frames and the number of samples, for runs of (probability, seconds)."""
    frames = [
        np.full(round(seconds * RATE / VAD_FRAME), level, np.float32) for level, seconds in runs
    ]
    joined = np.concatenate(frames)
    return joined, len(joined) * VAD_FRAME


def seconds(segments: Iterator[SpeechSegment]) -> list[tuple[float, float]]:
    return [(round(segment.start / RATE, 1), round(segment.end / RATE, 1)) for segment in segments]


def test_silence_costs_nothing() -> None:
    assert cut(levels((0.0, 600)), 30) == []
    found = cut(levels((0.0, 60), (1.0, 4), (0.0, 300), (1.0, 4), (0.0, 60)), 30)
    assert len(found) == 1
    assert len(found[0].samples) < 9 * RATE


def test_a_long_segment_is_cut_in_its_pause() -> None:
    found = cut(levels((1.0, 6), (0.1, 0.2), (1.0, 6)), 8)
    assert seconds(all_segments(found)) == [(0.0, 6.1), (6.1, 12.2)]


def test_a_pause_in_the_first_half_is_no_place_to_cut() -> None:
    found = cut(levels((1.0, 1), (0.1, 0.2), (1.0, 12)), 8)
    assert seconds(all_segments(found))[0] == (0.0, 7.9)


def test_without_a_pause_chunks_overlap() -> None:
    found = cut(levels((1.0, 20)), 8)
    assert [round(chunk.overlap, 2) for chunk in found] == [0.0, 1.33, 1.33]
    assert found[1].segments[0].start < found[0].segments[-1].end


def test_noise_shorter_than_speech_is_dropped() -> None:
    assert cut(levels((0.0, 1), (1.0, 0.064), (0.0, 1)), 8) == []


def test_without_a_detector_all_is_speech() -> None:
    blocks = np.array_split(np.arange(100_001, dtype=np.float32), 7)
    found = list(chunk_audio(blocks, 30, OPTIONS, AllSpeech()))
    assert [chunk.segments for chunk in found] == [(SpeechSegment(0, 100_001),)]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": 0.4, "neg_threshold": 0.5}, "neg_threshold"),
        ({"min_silence_ms": -1}, "min_silence_ms"),
        ({"min_speech_ms": "100"}, "min_speech_ms"),
        ({"min_speech_ms": True}, "min_speech_ms"),
        ({"pad_ms": 300, "min_silence_ms": 500}, "pad_ms"),
    ],
)
def test_options_out_of_range_are_named(values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param) as refused:
        SpeechOptions(**values)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("heard", "rest"),
    [
        (1.9, 2.0),  # before the second segment
        (2.4, 2.0),  # where its speech begins
        (2.6, 2.0),  # in its first word
        (3.0, 3.0),  # after that
        (3.9, None),  # too little is left
    ],
)
def test_a_rest_begins_with_a_whole_word(heard: float, rest: float | None) -> None:
    rate = 16_000
    pad = round(0.4 * rate)
    segments = (
        SpeechSegment(0, 2 * rate, lead=pad, tail=pad),
        SpeechSegment(5 * rate, 7 * rate + 2 * pad, lead=pad, tail=pad),
    )
    chunk = AudioChunk(segments, np.zeros(4 * rate + 2 * pad, np.float32))
    assert chunk.untranscribed_from(heard) == (None if rest is None else pytest.approx(rest))
