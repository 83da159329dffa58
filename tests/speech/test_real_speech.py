"""A published Whisper on people's recordings: no speech is lost or transcribed twice."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from galley import LiveOptions, TranscribeOptions, Transcriber
from galley.speech.audio import Samples
from galley.speech.live_events import Completed, SpeechStarted, SpeechStopped
from tests import real, thorough
from tests.real_clips import CONDITIONS, Condition, clips, shuffled

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real-speech")]

RATE = 16_000
SAID = real.words(real.JFK)


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    with Transcriber(real.whisper(), weight_cache=False) as transcriber:
        yield transcriber


@pytest.fixture(scope="module")
def jfk() -> Samples:
    return real.recording("jfk.flac")


def heard(transcriber: Transcriber, samples: Samples, *, timestamps: bool = True) -> list[str]:
    options = TranscribeOptions(timestamps=timestamps)
    return real.words(transcriber.transcribe(samples, options).text())


def live_words(transcriber: Transcriber, samples: Samples) -> list[str]:
    """Return the words of a stream whose turns end after half a second of silence."""
    live = transcriber.live(LiveOptions(language="en", interval_ms=10_000))
    events = []
    for first in range(0, len(samples), RATE):
        events += live.feed(samples[first : first + RATE])
    events += live.feed(silence(2))
    return real.words(" ".join(event.text for event in events if isinstance(event, Completed)))


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


@pytest.mark.parametrize("timestamps", [True, False])
def test_a_public_address_is_transcribed_word_for_word(
    transcriber: Transcriber, jfk: Samples, timestamps: bool
) -> None:
    assert heard(transcriber, jfk, timestamps=timestamps) == SAID


@pytest.mark.parametrize("seconds", [4, 8, 13, 23] if thorough.THOROUGH else [8])
def test_speech_after_silence_is_transcribed(
    transcriber: Transcriber, jfk: Samples, seconds: int
) -> None:
    again = np.concatenate([jfk, silence(seconds), jfk[: 11 * RATE // 4]])
    with_timestamps = heard(transcriber, again)
    assert with_timestamps == heard(transcriber, again, timestamps=False)
    assert with_timestamps[: len(SAID)] == SAID
    assert with_timestamps[len(SAID) :] == SAID[:5]


@pytest.mark.skipif(not thorough.THOROUGH, reason="left to make thorough: each takes seconds")
@pytest.mark.parametrize("cut", [30 + 0.25 * step for step in range(13)])
def test_a_talk_cut_anywhere_keeps_its_words(
    transcriber: Transcriber, jfk: Samples, cut: float
) -> None:
    """The same 22 words three times; the third time the end is cut off."""
    talk = np.concatenate([jfk, jfk, jfk])[: round(cut * RATE)]
    got = heard(transcriber, talk)
    whole = SAID * 3
    best = min(range(2 * len(SAID), len(whole) + 1), key=lambda n: real.errors(whole[:n], got))
    assert real.errors(whole[:best], got) <= 2
    # The last eleven seconds have as much text as without the words before.
    alone = heard(transcriber, talk[22 * RATE :])
    assert abs(len(got) - 2 * len(SAID) - len(alone)) <= 2


@pytest.mark.skipif(not thorough.THOROUGH, reason="left to make thorough: it takes minutes")
@pytest.mark.parametrize("condition", CONDITIONS)
def test_shuffled_clips_have_no_more_errors_than_with_faster_whisper(condition: Condition) -> None:
    """Both compute in float32."""
    from faster_whisper import WhisperModel

    peer = WhisperModel(str(real.whisper()), compute_type="float32")
    ours = theirs = 0
    with Transcriber(real.whisper(), dtype="float32") as transcriber:
        for seed in range(6):
            samples, said = shuffled(seed, 60, condition)
            options = TranscribeOptions(language="en")
            ours += real.errors(said, real.words(transcriber.transcribe(samples, options).text()))
            text = " ".join(segment.text for segment in peer.transcribe(samples)[0])
            theirs += real.errors(said, real.words(text))
    assert ours <= theirs


@pytest.mark.skipif(not thorough.THOROUGH, reason="left to make thorough: it takes minutes")
@pytest.mark.timeout(1200)
def test_live_audio_with_turns_is_within_two_points_of_files(transcriber: Transcriber) -> None:
    wrong_live = wrong_file = count = 0
    for condition, seed in itertools.product(CONDITIONS, range(3)):
        samples, said = shuffled(seed, 40, condition)
        wrong_live += real.errors(said, live_words(transcriber, samples))
        wrong_file += real.errors(said, heard(transcriber, samples))
        count += len(said)
    assert wrong_live - wrong_file <= 0.02 * count


@pytest.mark.skipif(not thorough.THOROUGH, reason="left to make thorough: it takes half a minute")
def test_clips_alone_are_within_two_points_live_and_as_files(transcriber: Transcriber) -> None:
    wrong_live = wrong_file = count = 0
    for samples, said in clips():
        wrong_live += real.errors(said, live_words(transcriber, samples))
        wrong_file += real.errors(said, heard(transcriber, samples))
        count += len(said)
    assert wrong_live - wrong_file <= 0.02 * count


@pytest.mark.parametrize("decibels", [0, -10, -20])
def test_a_quiet_word_is_heard_live(transcriber: Transcriber, decibels: int) -> None:
    """ "Okay", with a peak of -37 dB, and quieter; the stream begins with it."""
    [samples] = [samples for samples, said in clips() if said == ["okay"]]
    quiet = samples * np.float32(10 ** (decibels / 20))
    assert live_words(transcriber, quiet) == ["okay"]


@pytest.mark.parametrize("decibels", [-40, -50])
def test_quiet_speech_is_transcribed_word_for_word(
    transcriber: Transcriber, jfk: Samples, decibels: int
) -> None:
    assert heard(transcriber, jfk * np.float32(10 ** (decibels / 20))) == SAID


def test_live_audio_and_files_agree(transcriber: Transcriber, jfk: Samples) -> None:
    """A turn that the client commits is decoded as a whole, like a file."""
    live = transcriber.live(LiveOptions(commit_turns=False, interval_ms=5_000))
    for first in range(0, len(jfk), RATE):
        live.feed(jfk[first : first + RATE])
    texts = [event.text for event in live.commit() if isinstance(event, Completed)]
    assert real.errors(heard(transcriber, jfk), real.words(" ".join(texts))) == 0


def test_each_turn_of_live_audio_is_transcribed_like_a_file(
    transcriber: Transcriber, jfk: Samples
) -> None:
    """Half a second of silence ends a turn, and the transcript depends on where turns end."""
    talk = jfk[: 5 * RATE]
    live = transcriber.live(LiveOptions(interval_ms=5_000))
    events = [
        event
        for first in range(0, len(talk), RATE)
        for event in live.feed(talk[first : first + RATE])
    ]
    events += live.feed(silence(1))
    starts = [event.at_ms for event in events if isinstance(event, SpeechStarted)]
    ends = [event.at_ms for event in events if isinstance(event, SpeechStopped)]
    turns = [
        talk[RATE * start // 1000 : RATE * end // 1000]
        for start, end in zip(starts, ends, strict=True)
    ]
    texts = [event.text for event in events if isinstance(event, Completed)]
    assert len(texts) == len(turns) > 1
    wrong = sum(
        real.errors(heard(transcriber, turn), real.words(text))
        for turn, text in zip(turns, texts, strict=True)
    )
    assert wrong == 0
