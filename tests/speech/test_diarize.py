"""Who speaks when: two people's voices told apart, clusters as scipy has them, words given to speakers."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from galley.errors import ModelNotFound, RequestError, UnsupportedModel
from galley.speech.audio import Recording, Samples
from galley.speech.decoder import Audio
from galley.speech.diarize.cluster import centroids, merges
from galley.speech.diarize.diarizer import Cancelled, Diarization, load
from galley.speech.diarize.encoders import _mel_power
from galley.speech.diarize.nets import Nets
from galley.speech.diarize.options import DiarizeOptions, NetFiles
from galley.speech.diarize.speakers import SpeakerLabels, as_rttm, by_channel, labeled
from galley.speech.diarize.turns import Turn, _assigned
from galley.speech.results import Segment, Word
from galley.speech.sources import RawPcm
from tests.speech.recordings import encode
from tests.speech.voices import READ, conversation, speaker_at


def of(samples: Samples) -> Recording:
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    return Recording(pcm, raw=RawPcm(16_000))


def reference(name: str, seconds: float) -> bytes:
    samples = np.concatenate(list(Recording(READ / f"{name}.flac")))
    return encode("wav", samples[: round(seconds * 16_000)])


def diarize(samples: Samples, options: DiarizeOptions | None = None) -> Diarization:
    return load()(of(samples), options or DiarizeOptions(), Recording)


def agreement(
    found: Diarization, turns: list[tuple[str, float, float]], seconds: float
) -> dict[str, dict[str, int]]:
    """Return speaker -> name that was found -> tenths of a second."""
    counts: dict[str, dict[str, int]] = {}
    for tenth in range(round(seconds * 10)):
        time = tenth / 10
        who = speaker_at(turns, time)
        for turn in found.turns:
            if who is not None and turn.start <= time < turn.end:
                names = counts.setdefault(who, {})
                name = found.names[turn.speaker]
                names[name] = names.get(name, 0) + 1
    return counts


def test_two_people_are_told_apart() -> None:
    samples, turns = conversation()
    found = diarize(samples)
    assert found.names == ("A", "B")
    counts = agreement(found, turns, len(samples) / 16_000)
    for who, name in (("austen", "A"), ("report", "B")):
        spoken = sum(end - start for speaker, start, end in turns if speaker == who) * 10
        assert counts[who].get(name, 0) > 0.85 * spoken
        assert sum(counts[who].values()) - counts[who][name] < 0.05 * spoken


def test_known_voices_name_their_speakers() -> None:
    samples, turns = conversation()
    options = DiarizeOptions(
        known_names=("Reader", "Nobody"),
        known_voices=(reference("austen-4", 6.0), reference("report", 7.0)),
    )
    # Only the novel is read: the other known speaker is not in it.
    alone = np.concatenate(
        [samples[int(a * 16_000) : int(b * 16_000)] for w, a, b in turns if w == "austen"]
    )
    assert diarize(alone, options).names == ("Reader",)


def voices(*speakers: int) -> NDArray[np.float32]:
    """Return unit vectors, each near that of a speaker."""
    generator = np.random.default_rng(0)
    found = np.eye(8)[list(speakers)] + generator.normal(size=(len(speakers), 8)) * 0.05
    unit: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit.astype(np.float32)


@pytest.mark.parametrize(
    ("bounds", "count"),
    [({}, 3), ({"least": 2, "most": 2}, 2), ({"most": 1}, 1), ({"least": 5, "most": 6}, 5)],
)
def test_the_number_of_speakers_is_found_bounded_or_given(
    bounds: dict[str, int], count: int
) -> None:
    heard = voices(0, 0, 0, 1, 1, 1, 2, 2, 2)
    seconds = np.full(len(heard), 2.0, np.float32)
    assert len(centroids(heard, seconds, threshold=0.4, **bounds)) == count


def test_a_short_stretch_is_no_speaker() -> None:
    heard = voices(0, 0, 0, 1, 1, 1, 2)
    seconds = np.array([1.6] * 6 + [0.6], np.float32)
    assert len(centroids(heard, seconds, threshold=0.4)) == 2


def test_of_many_voices_a_sample_is_clustered() -> None:
    heard = voices(*[0, 1, 1] * 1_200)
    found = centroids(heard, np.ones(len(heard), np.float32), threshold=0.4)
    assert len(found) == 2
    assert np.allclose(np.sort(found.argmax(axis=1)), [0, 1])


def test_silence_has_no_speakers() -> None:
    assert diarize(np.zeros(48_000, np.float32)) == Diarization((), ())


@pytest.mark.parametrize("seconds", [1.5, 10.2])
def test_a_reference_of_another_length_is_refused(seconds: float) -> None:
    silence = encode("wav", np.zeros(round(seconds * 16_000), np.float32))
    options = DiarizeOptions(known_names=("Jo",), known_voices=(silence,))
    with pytest.raises(RequestError, match=rf"'Jo' has {seconds} s; expected 2 to 10 s"):
        diarize(np.zeros(16_000, np.float32), options)


def test_a_reference_of_hours_is_not_read_to_its_end() -> None:
    read = 0

    def hours() -> Iterator[Samples]:
        nonlocal read
        for _ in range(3600):
            read += 16_000
            yield np.zeros(16_000, np.float32)

    class Long:
        def __iter__(self) -> Iterator[Samples]:
            return hours()

        def close(self) -> None: ...

    options = DiarizeOptions(known_names=("Ada",), known_voices=(b"",))
    with pytest.raises(RequestError, match="'Ada' has more than 20 s"):
        load()(of(np.zeros(16_000, np.float32)), options, lambda _: cast("Audio", Long()))
    assert read < 30 * 16_000


@pytest.mark.parametrize(("local", "speakers"), [(1, 1), (2, 2), (3, 3), (2, 5), (3, 32), (3, 2)])
def test_local_speakers_are_the_different_speakers_that_are_most_alike(
    local: int, speakers: int
) -> None:
    likeness = np.random.default_rng(local).random((local, speakers), np.float32)
    found = _assigned(likeness)
    if local > speakers:
        assert found == likeness.argmax(axis=1).tolist()
        return
    _, expected = linear_sum_assignment(likeness, maximize=True)
    assert found == expected.tolist()


def test_a_reference_without_speech_is_refused() -> None:
    silence = encode("wav", np.zeros(48_000, np.float32))
    options = DiarizeOptions(known_names=("Jo",), known_voices=(silence,))
    with pytest.raises(RequestError, match="'Jo' has no speech"):
        diarize(np.zeros(16_000, np.float32), options)


def test_a_cancelled_diarization_ends() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        load()(of(conversation()[0]), DiarizeOptions(), Recording, cancelled)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"num_speakers": 0}, "num_speakers"),
        ({"max_speakers": 33}, "max_speakers"),
        ({"num_speakers": 2, "min_speakers": 2}, "min_speakers"),
        ({"min_speakers": 3, "max_speakers": 2}, "min_speakers"),
        ({"known_names": ("a",)}, "known_speaker_names"),
        ({"known_names": ("a", "a"), "known_voices": (b"1", b"2")}, "known_speaker_names"),
    ],
)
def test_options_that_contradict_each_other_are_refused(values: dict, param: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(RequestError) as caught:
        DiarizeOptions(**values)
    assert caught.value.param == param


def test_missing_and_foreign_networks_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"segmentation\.onnx is missing"):
        Nets(NetFiles(tmp_path))
    (tmp_path / "segmentation.onnx").write_bytes(b"no network")
    with pytest.raises(UnsupportedModel, match="cannot be loaded"):
        Nets(NetFiles(tmp_path))


def test_mel_power_is_that_of_librosa() -> None:
    """Transformers' implementation follows librosa's."""
    samples: Samples = np.random.default_rng(0).normal(size=4_000).astype(np.float32)
    bands = mel_filter_bank(
        num_frequency_bins=201,
        num_mel_filters=40,
        min_frequency=0.0,
        max_frequency=8_000.0,
        sampling_rate=16_000,
        norm="slaney",
        mel_scale="slaney",
    )
    expected = spectrogram(
        samples,
        window_function(400, "hann"),
        frame_length=400,
        hop_length=160,
        power=2.0,
        pad_mode="constant",
        mel_filters=bands,
        mel_floor=0.0,
    ).T
    assert np.allclose(_mel_power()(samples), expected, rtol=1e-3, atol=1e-6)


@given(st.integers(0, 1_000), st.integers(2, 40))
def test_merges_are_those_of_scipy(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(count, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = (1 - vectors @ vectors.T).astype(np.float32)
    np.fill_diagonal(distances, 0.0)
    distances = ((distances + distances.T) / 2).astype(np.float32)
    expected = linkage(squareform(distances, checks=False), "average")
    found = merges(distances.copy())
    assert np.allclose([merge[2] for merge in found], expected[:, 2], atol=1e-5)
    threshold = float(np.median(expected[:, 2])) + 1e-4
    clusters = {number: {number} for number in range(count)}
    for one, other, distance in found:
        if distance <= threshold:
            clusters[one] |= clusters.pop(other)
    theirs = fcluster(expected, threshold, "distance")
    groups = {frozenset(np.flatnonzero(theirs == name).tolist()) for name in set(theirs)}
    assert {frozenset(group) for group in clusters.values()} == groups


TURNS = Diarization(("A", "B"), (Turn(0, 0.0, 2.0), Turn(1, 2.0, 4.0), Turn(0, 3.0, 3.4)))


def segment(text: str, times: Sequence[tuple[float, float]], **fields: object) -> Segment:
    words = tuple(
        Word(f" {word}", start, end) for word, (start, end) in zip(text.split(), times, strict=True)
    )
    whole = Segment(id=0, start=times[0][0], end=times[-1][1], text=f" {text}", words=words)
    return Segment(**{**{n: getattr(whole, n) for n in whole.__struct_fields__}, **fields})


def test_words_and_not_segments_get_a_speaker() -> None:
    said = segment(
        "yes it is what now", [(0.2, 0.5), (0.6, 0.9), (1.0, 1.9), (1.9, 2.3), (2.4, 2.8)]
    )
    parts = list(labeled([said], SpeakerLabels(TURNS, merges=False)))
    assert [(part.speaker, part.text) for part in parts] == [
        ("A", " yes it is"),
        ("B", " what now"),
    ]
    assert [(part.start, part.end) for part in parts] == [(0.2, 1.9), (1.9, 2.8)]


def test_a_remark_within_a_turn_gets_its_words() -> None:
    said = segment("so I okay said", [(2.1, 2.5), (2.6, 2.9), (3.05, 3.35), (3.5, 3.9)])
    parts = list(labeled([said], SpeakerLabels(TURNS, merges=False)))
    assert [(part.speaker, part.text) for part in parts] == [
        ("B", " so I"),
        ("A", " okay"),
        ("B", " said"),
    ]


def test_segments_of_one_turn_are_joined() -> None:
    said = [
        segment("one two", [(0.1, 0.4), (0.5, 0.9)], tokens=(1, 2)),
        segment("three", [(1.1, 1.5)], tokens=(3,)),
        segment("four", [(2.1, 2.5)]),
        segment("five", [(4.2, 4.5)]),
        segment("six", [(9.0, 9.5)]),
    ]
    parts = list(labeled(said, SpeakerLabels(TURNS, merges=True)))
    assert [(part.id, part.speaker, part.text) for part in parts] == [
        (0, "A", " one two three"),
        (1, "B", " four"),
        (2, "B", " five"),
        (3, "B", " six"),
    ]
    assert parts[0].tokens == (1, 2, 3)


def test_a_text_without_word_times_is_divided_by_its_characters() -> None:
    said = Segment(id=0, start=0.0, end=4.0, text=" aaaa bbbb cccc dddd")
    parts = list(labeled([said], SpeakerLabels(TURNS, merges=False)))
    assert "".join(part.text for part in parts) == said.text
    assert [part.speaker for part in parts] == ["A", "B"]


def test_channels_are_speakers() -> None:
    said = [segment("hello", [(0.0, 1.0)], channel=2), segment("hi", [(1.0, 2.0)], channel=1)]
    assert [part.speaker for part in by_channel(said)] == ["B", "A"]


def test_rttm_has_the_fields_of_nist() -> None:
    found = Diarization(("Jo Smith",), (Turn(0, 1.0, 2.5),))
    assert list(as_rttm("a call", found)) == [
        "SPEAKER a_call 1 1.000 1.500 <NA> <NA> Jo_Smith <NA> <NA>\n"
    ]
