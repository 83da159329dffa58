"""galley.Transcriber on a tiny checkpoint: the same text as transformers, in order, for any recording."""

import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, GenerationMixin, WhisperForConditionalGeneration
from transformers.generation import (
    LogitNormalization,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from galley import QualityRules, SpeechOptions, TranscribeOptions, Transcriber
from galley.errors import AudioError, AudioTooLong, ModelError, ModelNotFound, RequestError
from galley.speech import captions
from galley.speech.audio import RawPcm, Recording
from galley.speech.decoder import Decoder
from galley.speech.diarize.options import DiarizeOptions, NetFiles
from galley.speech.features import LogMel
from galley.speech.results import Segment
from galley.speech.transcription import Ended, Transcription
from galley.text.tokenizer import Tokenizer
from galley.types import Output
from tests.conftest import CheckpointMaker
from tests.speech import tiny
from tests.speech.recordings import CALL, encode

ROOT = Path(__file__).parents[2]
SHORT_PAUSES = SpeechOptions(min_speech_ms=100, min_silence_ms=300, pad_ms=100)
GREEDY = QualityRules(
    beam_size=1,
    temperatures=(0.0,),
    compression_ratio_threshold=None,
    log_prob_threshold=None,
    no_speech_threshold=None,
)
ENGLISH = TranscribeOptions(language="en", rules=GREEDY, speech=SHORT_PAUSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def transcriber(folder: Path) -> Iterator[Transcriber]:
    with Transcriber(folder, dtype="float32", threads=1) as transcriber:
        yield transcriber


def timed(segments: list[Segment]) -> list[tuple[float, float, str]]:
    return [(segment.start, segment.end, segment.text) for segment in segments]


def truth(
    folder: Path, samples: NDArray[np.float32], prompt: str, timestamps: bool, beams: int
) -> list[int]:
    """Return the tokens that transformers generates for one chunk, without its own loop over chunks."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    features = LogMel(tiny.MELS, tiny.INPUT_SECONDS)(samples)
    prefix = [tiny.token_id(f"<|{name}|>") for name in prompt.split()]
    config = model.generation_config
    processors = LogitsProcessorList(
        [
            SuppressTokensLogitsProcessor(config.suppress_tokens),
            SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, len(prefix)),
        ]
    )
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(prefix)))
    if beams > 1:
        processors.append(LogitNormalization())
    with torch.inference_mode():
        generated = GenerationMixin.generate(
            model,
            torch.from_numpy(features.T.copy())[None],
            decoder_input_ids=torch.tensor([prefix]),
            logits_processor=processors,
            generation_config=GenerationConfig(
                max_new_tokens=32,
                do_sample=False,
                num_beams=beams,
                eos_token_id=config.eos_token_id,
            ),
        )
    return [int(token) for token in generated[0][len(prefix) :]]


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("beams", [1, 5])
def test_a_chunks_text_is_transformers_own(
    folder: Path, transcriber: Transcriber, language: str, timestamps: bool, beams: int
) -> None:
    recording = encode("wav", np.concatenate(list(Recording(CALL)))[32_000:80_000])
    samples = np.concatenate(list(Recording(recording)))
    options = TranscribeOptions(
        language=language,
        speech=None,
        rules=dataclasses.replace(GREEDY, beam_size=beams),
        timestamps=timestamps,
        task="translate",
    )
    segments = list(transcriber.transcribe(recording, options))
    prompt = f"startoftranscript {language} translate"
    expected = truth(
        folder, samples, prompt if timestamps else f"{prompt} notimestamps", timestamps, beams
    )
    first_time = tiny.token_id("<|0.00|>")
    if timestamps and expected[-1] != tiny.token_id("<|endoftext|>"):
        # Cut off at the limit: the audio after the last timestamp is decoded again.
        last = max(i for i, token in enumerate(expected) if token >= first_time)
        expected = expected[: last + 1]
    tokenizer = Tokenizer.load(folder)
    # Segments without a letter are dropped.
    spelled = {t for t in range(tiny.TEXT_TOKENS) if any(map(str.isalnum, tokenizer.decode([t])))}
    words = [token for token in expected if token in spelled]
    tokens = [token for segment in segments for token in segment.tokens if token in spelled]
    assert tokens[: len(words)] == words
    assert timestamps or len(tokens) == len(words)
    times = [(token - first_time) * 0.02 for token in expected if token >= first_time]
    if timestamps:
        assert any(segments[0].start == pytest.approx(time, abs=1e-3) for time in times)


def test_a_recording_is_transcribed_in_order(transcriber: Transcriber) -> None:
    transcription = transcriber.transcribe(CALL, ENGLISH)
    segments = list(transcription)
    assert len(segments) >= 3
    assert [segment.id for segment in segments] == list(range(len(segments)))
    starts = [segment.start for segment in segments]
    assert starts == sorted(starts)
    assert all(0 <= s.start <= s.end <= transcription.info.duration for s in segments)
    info = transcription.info
    assert (info.language, info.task, info.warnings) == ("en", "transcribe", ())
    assert info.duration == pytest.approx(20.08, abs=0.01)


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """Return three recordings of different lengths."""
    samples = np.concatenate(list(Recording(CALL)))
    starts = (0, 50_000, 150_000)
    return [encode("wav", samples[start : start + 80_000 + start // 2]) for start in starts]


def test_recordings_together_have_their_own_results_with_fewer_steps(
    transcriber: Transcriber, files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = transcriber._engine.engine
    steps = 0

    def step() -> list[Output]:
        nonlocal steps
        steps += 1
        return own_step()

    own_step = engine.step
    monkeypatch.setattr(engine, "step", step)
    alone = [timed(list(transcriber.transcribe(file, ENGLISH))) for file in files]
    steps_alone, steps = steps, 0
    begun = [transcriber.transcribe(file, ENGLISH) for file in files]
    found: list[list[Segment]] = [[] for _ in files]
    for place, segment in transcriber.together(begun):
        found[place].append(segment)
    assert [timed(segments) for segments in found] == alone
    assert steps < 0.7 * steps_alone
    assert [one.info.duration for one in begun] == pytest.approx([5.0, 6.5625, 9.6875], abs=0.01)


def test_each_recording_has_its_own_result_and_its_own_error(
    transcriber: Transcriber, files: list[bytes]
) -> None:
    """Some are open at a time; one that is not audio and one that is too long end alone."""
    alone = [timed(list(transcriber.transcribe(file, ENGLISH))) for file in files]
    silence = encode("wav", np.zeros(16_000, np.float32))
    sources = [files[0], b"no audio at all" * 1000, files[1], silence, CALL, files[2], files[0]]
    now_open, most = 0, 0

    def begin(source: Any) -> Transcription:
        nonlocal now_open, most
        transcription = transcriber.transcribe(
            source, ENGLISH, max_seconds=15 if source is CALL else None
        )
        now_open += 1
        most = max(most, now_open)
        return transcription

    found: list[list[Segment]] = [[] for _ in sources]
    ended: dict[int, Ended] = {}
    begun = [partial(begin, source) for source in sources]
    for place, segment in transcriber.transcribe_each(begun, at_a_time=2):
        assert place not in ended
        if isinstance(segment, Ended):
            ended[place] = segment
            now_open -= place != 1  # which was never open
        else:
            found[place].append(segment)
    assert [type(ended[place].error) for place in range(len(sources))] == [
        type(None),
        AudioError,
        type(None),
        type(None),
        AudioTooLong,
        type(None),
        type(None),
    ]
    whole = [timed(segments) for place, segments in enumerate(found) if place not in (1, 3, 4)]
    assert whole == [*alone, alone[0]]
    assert not found[3]
    assert most == 2
    with pytest.raises(RequestError, match="at least 1, got 0"):
        transcriber.transcribe_each([], at_a_time=0)


def test_recordings_that_are_left_are_closed(transcriber: Transcriber) -> None:
    long = encode("wav", np.tile(np.concatenate(list(Recording(CALL))), 5))
    begun = [partial(transcriber.transcribe, long, ENGLISH)] * 3
    each = transcriber.transcribe_each(begun, at_a_time=2)
    next(each)
    assert transcriber._decoder._open_now == 2
    each.close()
    assert transcriber._decoder._open_now == 0
    assert not transcriber._engine._queues


def test_threads_share_the_batch_and_get_their_own_results(
    transcriber: Transcriber, files: list[bytes]
) -> None:
    alone = [timed(list(transcriber.transcribe(file, ENGLISH))) for file in files]
    together: list[list[tuple[float, float, str]]] = [[] for _ in files]

    def work(index: int) -> None:
        together[index] = timed(list(transcriber.transcribe(files[index], ENGLISH)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(files))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_language_is_detected(transcriber: Transcriber) -> None:
    transcription = transcriber.transcribe(CALL, TranscribeOptions(rules=GREEDY))
    assert list(transcription)
    assert transcription.info.language in tiny.LANGUAGES


def test_silence_has_no_text(transcriber: Transcriber) -> None:
    silence = encode("wav", np.zeros(16_000 * 60, np.float32))
    transcription = transcriber.transcribe(silence)
    assert transcription.text() == ""
    assert transcription.info.duration == 60.0


def test_a_recording_that_was_cut_off_is_transcribed_up_to_there(transcriber: Transcriber) -> None:
    samples = np.concatenate(list(Recording(CALL, sample_rate=44_100)))
    whole = encode("mp3", samples)
    transcription = transcriber.transcribe(whole[: len(whole) * 6 // 10], ENGLISH)
    assert list(transcription)
    assert transcription.info.warnings
    assert 11 < transcription.info.duration < 13


def test_stopping_early_leaves_nothing_behind(transcriber: Transcriber) -> None:
    segments = iter(transcriber.transcribe(CALL, ENGLISH))
    first = next(segments)
    segments.close()  # type: ignore[attr-defined]
    assert timed(list(transcriber.transcribe(CALL, ENGLISH)))[0] == timed([first])[0]


def test_long_speech_without_a_pause_is_cut_and_joined(transcriber: Transcriber) -> None:
    options = TranscribeOptions(language="en", speech=None, rules=GREEDY)
    segments = list(transcriber.transcribe(CALL, options))
    starts = [segment.start for segment in segments]
    assert len(starts) > 2
    assert starts == sorted(starts)
    # All 20 s count as speech, and 4 s fit the encoder, so each part of the recording has text.
    assert {int(start // 4) for start in starts} >= set(range(5))


@pytest.mark.parametrize("speech", [SHORT_PAUSES, None])
def test_words_are_in_order_in_their_segments(
    speech: SpeechOptions | None, folder: Path, transcriber: Transcriber
) -> None:
    """Chunks cut at pauses, and overlapping ones; the same on both executors."""
    plain = TranscribeOptions(language="en", rules=GREEDY, speech=speech)
    options = dataclasses.replace(plain, word_timestamps=True)
    segments = list(transcriber.transcribe(CALL, options))
    words = [word for segment in segments for word in segment.words or ()]
    assert len(words) >= len(segments) > 2
    assert all(word.start <= word.end for word in words)
    assert all(a.end <= b.start for a, b in itertools.pairwise(words))
    for segment in segments:
        assert segment.words
        assert "".join(word.text for word in segment.words) == segment.text
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
    with Transcriber(folder, dtype="float32", threads=1, executor="reference") as reference:
        expected = list(reference.transcribe(CALL, options))
    assert [segment.text for segment in segments] == [segment.text for segment in expected]
    theirs = [word for segment in expected for word in segment.words or ()]
    for word, other in zip(words, theirs, strict=True):
        assert abs(word.start - other.start) <= 0.021
        assert abs(word.end - other.end) <= 0.021
        assert word.probability == pytest.approx(other.probability, abs=1e-3)
    if speech is not None:
        texts = [segment.text for segment in transcriber.transcribe(CALL, plain)]
        assert [segment.text for segment in segments] == texts


def test_what_cannot_be_transcribed_is_refused(transcriber: Transcriber) -> None:
    with pytest.raises(AudioError, match="is not audio"):
        transcriber.transcribe(b"no audio at all" * 1000)
    with pytest.raises(AudioTooLong):
        list(transcriber.transcribe(CALL, max_seconds=5))
    with pytest.raises(RequestError, match="does not support french"):
        transcriber.transcribe(CALL, TranscribeOptions(language="fr"))


def test_a_recording_is_closed_if_its_work_cannot_begin(
    transcriber: Transcriber, tmp_path: Path
) -> None:
    files = NetFiles(tmp_path)
    with Decoder(most=1) as decoder:  # which refuses another recording while one is open
        recording = decoder.open(CALL)
        with pytest.raises(RequestError, match="french"):
            transcriber.transcribe_audio(recording, TranscribeOptions(language="fr"))
        recording = decoder.open(CALL)
        with pytest.raises(ModelNotFound):
            transcriber.diarize_audio(recording, DiarizeOptions(), models=files)
        decoder.open(CALL).close()


def test_a_text_model_is_refused(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(ModelError, match="is a text model; transcribing needs a speech model"):
        Transcriber(checkpoint("llama"), threads=1)


def test_speech_options_reach_the_detector(transcriber: Transcriber) -> None:
    deaf = TranscribeOptions(language="en", speech=SpeechOptions(threshold=1.0))
    assert transcriber.transcribe(CALL, deaf).text() == ""


def test_an_array_is_a_recording(transcriber: Transcriber) -> None:
    samples = np.concatenate(list(Recording(CALL)))
    expected = timed(list(transcriber.transcribe(CALL, ENGLISH)))
    assert expected
    arrays: list[Any] = [samples, samples.astype(np.float64), torch.from_numpy(samples)]
    for array in arrays:
        assert timed(list(transcriber.transcribe(array, ENGLISH))) == expected
    pcm = np.round(samples * 32767).astype(np.int16)
    raw = RawPcm(8000)
    same = timed(list(transcriber.transcribe(pcm[::2].tobytes(), ENGLISH, raw=raw)))
    assert timed(list(transcriber.transcribe(pcm[::2], ENGLISH, sample_rate=8000))) == same


def test_what_is_not_a_recording_is_refused(transcriber: Transcriber) -> None:
    silence = np.zeros(16_000, np.float32)
    wrong: list[tuple[Any, dict[str, Any], str, str]] = [
        ([0.1, 0.2], {}, "source", r"an array of samples; got \[0.1, 0.2\] \(list\)"),
        (None, {}, "source", "got None"),
        (np.zeros((2, 16_000), np.float32), {}, "source", r"one channel.* shape \[2, 16000\]"),
        (np.zeros(16_000, np.int64), {}, "source", "an array of int64"),
        (silence, {"sample_rate": 100}, "sample_rate", "from 4000 to 768000, got 100"),
        (silence, {"options": "en"}, "options", r"expected TranscribeOptions\(language='en'"),
        (silence, {"raw": RawPcm(16_000)}, "raw", "raw applies to files only"),
        (CALL, {"sample_rate": 8000}, "sample_rate", "applies to arrays only"),
    ]
    for source, arguments, param, message in wrong:
        with pytest.raises(RequestError, match=message) as caught:
            transcriber.transcribe(source, **arguments)
        assert caught.value.param == param
    with pytest.raises(AudioError, match="no decodable audio"):
        list(transcriber.transcribe(silence[:0], ENGLISH))


def test_reprs_of_transcripts_are_readable(transcriber: Transcriber) -> None:
    assert repr(transcriber).startswith("Transcriber('")
    assert "whisper" in repr(transcriber)
    transcription = transcriber.transcribe(CALL, ENGLISH)
    assert "call text()" in repr(transcription)


def test_a_model_says_where_it_was_unsure() -> None:
    with Transcriber(threads=1) as bundled:
        known = bundled.transcribe(ROOT / "examples/call.opus")
        assert "My account number is 51541141." in known.text()
        assert known.info.warnings == ()
        other = bundled.transcribe(CALL)  # of a different telephone line
        assert other.text()
        [warning] = other.info.warnings
        assert "has low confidence from 2.0 s (0." in warning
        assert "below 0.82" in warning
        heard = captions.as_json(list(bundled.transcribe(CALL)), warnings=other.info.warnings)
        assert json.loads(heard)["warnings"] == [warning]


def test_an_array_has_neither_tracks_nor_channels(transcriber: Transcriber) -> None:
    for name in ("track", "channel"):
        with pytest.raises(RequestError, match="an array has one") as caught:
            transcriber.transcribe(np.zeros(16_000, np.float32), **{name: 1})  # type: ignore[arg-type]
        assert caught.value.param == name
