"""Sound of films and unusual files: at the right time, from the right track, in any channel layout."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from galley.errors import AudioError, AudioTooLong, RequestError
from galley.speech.audio import SAMPLE_RATE, Recording
from tests.speech.recordings import Track, encode, film, tone

RATE = 48_000
CONTAINERS = {
    "mp4": "aac",
    "mov": "aac",
    "matroska": "aac",
    "webm": "libopus",
    "mpegts": "mp2",
}


def sounding(recording: Recording) -> list[tuple[float, float]]:
    """Return where the recording is audible: start and end in seconds."""
    samples = np.concatenate(list(recording))
    window = SAMPLE_RATE // 100
    loud = np.abs(samples[: len(samples) // window * window]).reshape(-1, window).max(axis=1) > 0.05
    edges = np.flatnonzero(np.diff(np.concatenate([[0], loud.astype(int), [0]])))
    return [(begin / 100, end / 100) for begin, end in edges.reshape(-1, 2).tolist()]


def at(*spans: tuple[float, float]) -> list[object]:
    return [pytest.approx(span, abs=0.06) for span in spans]


def sound(seconds: float, *, peak: float = 0.5) -> NDArray[np.float32]:
    return tone(seconds, RATE, peak=peak)[None]


@pytest.mark.parametrize("start", [0.0, 0.8, 4.9])
@pytest.mark.parametrize("container", CONTAINERS)
def test_sound_begins_where_it_does_in_the_film(container: str, start: float) -> None:
    data = film(container, Track([(start, sound(2))]), video=8, codec=CONTAINERS[container])
    recording = Recording(data)
    assert sounding(recording) == at((start, start + 2))
    assert recording.warnings == []


@pytest.mark.parametrize("gaps", [[10.0], [0.5, 3.0], [25.0, 0.2]], ids=str)
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_gap_in_time_stamps_is_silence(container: str, gaps: Sequence[float]) -> None:
    spans, begin = [(0.0, 2.0)], 2.0
    for gap in gaps:
        spans.append((begin + gap, begin + gap + 1.5))
        begin += gap + 1.5
    parts = [(begin, sound(end - begin)) for begin, end in spans]
    recording = Recording(film(container, Track(parts), codec=CONTAINERS[container]))
    assert sounding(recording) == at(*spans)
    assert recording.warnings == []


def test_time_stamps_far_beyond_any_recording_are_no_silence() -> None:
    data = film("matroska", Track([(0, sound(1)), (1e6, sound(1))]))
    recording = Recording(data)
    assert sounding(recording) == at((0, 2))


def test_a_gap_longer_than_a_recording_may_be_is_refused_before_it_is_filled() -> None:
    data = film("matroska", Track([(0, sound(2)), (50_000, sound(1))]))
    recording = Recording(data, name="film")
    with pytest.raises(AudioError, match="film decodes to more than"):
        list(recording)
    assert recording.seconds < 4
    with pytest.raises(AudioTooLong, match="the limit is 20000 s"):
        Recording(data, max_seconds=20_000)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_video_longer_than_its_sound_is_not_damaged(container: str) -> None:
    recording = Recording(
        film(container, Track([(0, sound(2))]), video=20, codec=CONTAINERS[container])
    )
    assert sounding(recording) == at((0, 2))
    assert recording.warnings == []


@pytest.mark.parametrize("container", ["matroska", "webm"])
def test_a_video_that_was_cut_off_is_damaged(container: str) -> None:
    data = film(container, Track([(0, sound(8))]), video=20, codec=CONTAINERS[container])
    recording = Recording(data[: len(data) // 3], name="film")
    assert np.concatenate(list(recording)).any()
    assert len(recording.warnings) == 1
    assert "film" in recording.warnings[0]


# Channels.


def placed(layout: str, place: int, count: int) -> Track:
    channels = np.zeros((count, 2 * RATE), np.float32)
    channels[place] = tone(2, RATE)
    return Track([(0, channels)], layout)


@pytest.mark.parametrize(
    ("layout", "place", "count", "least"),
    [
        ("3.0", 2, 3, 0.24),
        ("5.1", 2, 6, 0.19),
        ("5.1(side)", 2, 6, 0.19),
        ("6.1", 2, 7, 0.15),
        ("5.1", 0, 6, 0.09),
        ("5.1", 5, 6, 0.04),
        ("quad", 3, 4, 0.12),
        ("stereo", 1, 2, 0.24),
    ],
)
def test_a_voice_is_found_in_its_channel(layout: str, place: int, count: int, least: float) -> None:
    samples = np.concatenate(
        list(Recording(film("matroska", placed(layout, place, count), codec="flac")))
    )
    assert np.abs(samples[4_000:-4_000]).max() > least


def test_the_subwoofer_has_no_speech() -> None:
    recording = Recording(film("matroska", placed("5.1", 3, 6), codec="flac"))
    assert not np.concatenate(list(recording)).any()


@pytest.mark.parametrize("balance", [1.0, 0.95])
@pytest.mark.parametrize(
    ("layout", "signs"),
    [("stereo", [1, -1]), ("quad", [1, 1, -1, -1]), ("5.1", [1, -1, 0, 0, 0, 0])],
)
def test_channels_in_opposite_phase_are_transcribed(
    layout: str, signs: list[int], balance: float
) -> None:
    """A microphone wired with reversed polarity: the mean of its channels is next to nothing."""
    wave = tone(4, RATE)
    channels = np.stack([wave * (s if s > 0 else s * balance) for s in signs]).astype(np.float32)
    samples = np.concatenate(
        list(Recording(film("matroska", Track([(0, channels)], layout), codec="flac")))
    )
    middle = samples[SAMPLE_RATE // 2 : -SAMPLE_RATE // 2]
    weight = 0.4 if layout == "5.1" else 1.0
    assert np.abs(middle).max() == pytest.approx(0.5 * weight, rel=0.06)
    spectrum = np.abs(np.fft.rfft(middle))
    assert spectrum.argmax() * SAMPLE_RATE / len(middle) == pytest.approx(440, abs=1)


# Tracks.


def track_of(hertz: float, *, default: bool = False, peak: float = 0.5) -> Track:
    return Track([(0, tone(2, RATE, hertz=hertz, peak=peak)[None])], default=default)


def hertz(recording: Recording) -> int:
    samples = np.concatenate(list(recording))[:SAMPLE_RATE]
    return int(np.abs(np.fft.rfft(samples)).argmax())


@pytest.mark.parametrize("container", ["matroska", "mp4", "mov"])
@pytest.mark.parametrize("default", [1, 2, 3])
def test_the_default_track_is_used_unless_another_is_requested(
    default: int, container: str
) -> None:
    tracks = [track_of(300 * n, default=n == default) for n in (1, 2, 3)]
    data = film(container, *tracks, video=2)
    assert hertz(Recording(data)) == pytest.approx(300 * default, abs=2)
    for track in (1, 2, 3):
        assert hertz(Recording(data, track=track)) == pytest.approx(300 * track, abs=2)


@pytest.mark.parametrize("track", [0, 3, -1])
def test_a_track_that_is_not_there_is_refused(track: int) -> None:
    data = film("mp4", track_of(300), track_of(600), video=1)
    with pytest.raises(RequestError, match=f"film has 2 audio tracks, got {track}") as refused:
        Recording(data, track=track, name="film")
    assert refused.value.param == "track"


def test_a_silent_track_is_reported() -> None:
    data = film("mp4", track_of(300, peak=0.0), track_of(600), video=1)
    recording = Recording(data, name="film")
    assert np.concatenate(list(recording)).max() < 1e-3
    assert recording.warnings == [
        "film contains only silence in its audio track 1 of 2; `track` chooses another"
    ]
    heard = Recording(data, track=2)
    assert hertz(heard) == pytest.approx(600, abs=2)
    assert heard.warnings == []


def test_a_recording_of_silence_alone_is_reported() -> None:
    recording = Recording(encode("wav", np.zeros(SAMPLE_RATE, np.float32)), name="call.wav")
    assert not np.concatenate(list(recording)).any()
    assert recording.warnings == ["call.wav contains only silence"]


# Joined files.


@pytest.mark.parametrize("channels", [1, 2])
def test_what_comes_before_an_end_that_cannot_be_read_is_kept(channels: int) -> None:
    """FFmpeg does not read chained Ogg files whose second link has a different channel count."""
    first = encode("ogg", tone(3, RATE))
    second = encode("ogg", *[tone(2, RATE)] * channels)
    recording = Recording(first + second, name="chain.ogg")
    seconds = len(np.concatenate(list(recording))) / SAMPLE_RATE
    if channels == 1:
        assert seconds == pytest.approx(5, abs=0.05)
        assert recording.warnings == []
    else:
        assert seconds == pytest.approx(3, abs=0.05)
        [warning] = recording.warnings
        assert "chain.ogg cannot be read to its end" in warning
