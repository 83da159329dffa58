"""OpenAI's own client transcribes in every output format; errors in a form name the field."""

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import srt
import webvtt
from openai import OpenAI

from galley import QualityRules, SpeechOptions, TranscribeOptions, Transcriber
from galley.speech.audio import Recording
from galley.speech.languages import NAMES
from tests.missing import broken
from tests.server.openapi import HEARD, check_answers
from tests.server.serving import Server, until
from tests.speech.recordings import Track, encode, film, tone

pytestmark = pytest.mark.xdist_group("server_audio")

CALL = Path(__file__).parents[1] / "speech" / "data" / "call.ogg"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def server(hearing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        hearing,
        log,
        threads=1,
        max_audio_bytes=4_000_000,
        max_audio_seconds=60,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


@pytest.fixture(scope="module")
def speech() -> bytes:
    """Return three seconds of the recording."""
    return encode("wav", np.concatenate(list(Recording(CALL)))[32_000:80_000])


@pytest.fixture(scope="module")
def expected(hearing: Path, speech: bytes) -> str:
    """Return the library's transcript."""
    with Transcriber(hearing, threads=1) as transcriber:
        return transcriber.transcribe(speech, TranscribeOptions(language="en")).text()


def test_json_is_what_the_library_says(client: OpenAI, speech: bytes, expected: str) -> None:
    answer = client.audio.transcriptions.create(
        model="hearing", file=("call.wav", speech), language="en"
    )
    assert answer.text == expected
    assert expected


def test_verbose_json_has_segments(client: OpenAI, speech: bytes, expected: str) -> None:
    answer = client.audio.transcriptions.create(
        model="hearing",
        file=("call.wav", speech),
        language="english",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert (answer.text, answer.language, answer.duration) == (expected, "english", 3.0)
    assert answer.segments
    assert all(0 <= segment.start <= segment.end <= 3 for segment in answer.segments)


@pytest.mark.parametrize("granularities", [["word"], ["segment", "word"]])
def test_verbose_json_has_words(
    granularities: Any, client: OpenAI, speech: bytes, expected: str
) -> None:
    answer = client.audio.transcriptions.create(
        model="hearing",
        file=("call.wav", speech),
        language="en",
        response_format="verbose_json",
        timestamp_granularities=granularities,
    )
    assert answer.text == expected
    assert answer.words
    assert "".join(word.word for word in answer.words) == "".join(expected.split())
    assert all(0 <= word.start <= word.end <= 3 for word in answer.words)
    assert all(a.end <= b.start for a, b in itertools.pairwise(answer.words))
    assert all(0 < word.to_dict()["probability"] <= 1 for word in answer.words)  # type: ignore[operator]
    if "segment" in granularities:
        assert answer.segments
        assert answer.segments[0].start == answer.words[0].start
        assert all(segment.avg_logprob <= 0 for segment in answer.segments)
    else:
        assert answer.segments is None


def test_captions_and_text(client: OpenAI, speech: bytes, expected: str) -> None:
    def said(response_format: Any) -> str:
        answer: Any = client.audio.transcriptions.create(
            model="hearing",
            file=("call.wav", speech),
            language="en",
            response_format=response_format,
        )
        assert isinstance(answer, str)
        return answer

    assert said("text") == expected + "\n"
    assert list(srt.parse(said("srt")))
    assert webvtt.from_buffer(io.StringIO(said("vtt"))).captions


def test_speech_detection_is_a_field(client: OpenAI, server: Server, speech: bytes) -> None:
    def ask(recording: bytes, **fields: Any) -> dict[str, Any]:
        answer = httpx.post(
            f"{server.url}{TRANSCRIPTIONS}",
            files={"file": ("call.wav", recording)},
            data={"language": "en", **fields},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    noise = encode("wav", tone(2, 16_000, peak=0.01))
    unheard = ask(noise)
    assert unheard["text"] == ""
    assert "no speech was found in 2.0 s" in unheard["warnings"][0]
    assert "warnings" not in ask(speech)
    assert not any(
        "no speech" in warning for warning in ask(noise, vad="false").get("warnings", ())
    )
    assert ask(speech, vad_threshold="1.0")["text"] == ""
    assert ask(speech, hotwords="Kowalska", vad_min_silence_ms="300", vad_pad_ms="100")["text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"vad_threshold": "1.5"}, "vad_threshold"),
        ({"vad_pad_ms": "1000"}, "vad_pad_ms"),
        ({"vad": "false", "vad_threshold": "0.4"}, "vad_threshold"),
        ({"vad": "maybe"}, "vad"),
    ],
)
def test_what_speech_detection_cannot_do_is_named(
    fields: dict[str, str], param: str, server: Server, speech: bytes
) -> None:
    answer = httpx.post(
        f"{server.url}{TRANSCRIPTIONS}", files={"file": ("call.wav", speech)}, data=fields
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_chunking_strategy_says_how_speech_is_found(
    client: OpenAI, hearing: Path, server: Server, speech: bytes
) -> None:
    """The object as the SDK encodes it in a form, and as JSON."""
    found = SpeechOptions(threshold=0.4, min_silence_ms=300, pad_ms=150, lead_ms=200)
    with Transcriber(hearing, threads=1) as transcriber:
        options = TranscribeOptions(language="en", speech=found)
        expected = transcriber.transcribe(speech, options).text()
    strategy: Any = {
        "type": "server_vad",
        "threshold": 0.4,
        "silence_duration_ms": 300,
        "prefix_padding_ms": 200,
    }

    def said(strategy: Any) -> str:
        return client.audio.transcriptions.create(
            model="hearing",
            file=("call.wav", speech),
            language="en",
            chunking_strategy=strategy,
        ).text

    assert said(strategy) == expected
    assert said(json.dumps(strategy)) == expected
    assert said("auto")
    assert said({**strategy, "threshold": 1.0}) == ""


def test_quality_controls_reach_the_model(client: OpenAI, hearing: Path, speech: bytes) -> None:
    rules = QualityRules(
        beam_size=2,
        best_of=3,
        temperatures=(0.0, 0.5),
        compression_ratio_threshold=None,
        log_prob_threshold=-0.01,
        no_speech_threshold=None,
        condition_on_previous_text=True,
    )
    with Transcriber(hearing, threads=1) as transcriber:
        options = TranscribeOptions(language="en", rules=rules)
        expected = list(transcriber.transcribe(speech, options))
    answer = client.audio.transcriptions.create(
        model="hearing",
        file=("call.wav", speech),
        language="en",
        response_format="verbose_json",
        extra_body={
            "temperature": [0, 0.5],
            "beam_size": 2,
            "best_of": 3,
            "compression_ratio_threshold": "null",
            "log_prob_threshold": -0.01,
            "no_speech_threshold": "null",
            "condition_on_previous_text": True,
        },
    )
    assert answer.segments
    got = [(segment.text, segment.temperature) for segment in answer.segments]
    assert got == [(segment.text, segment.temperature) for segment in expected]


def test_the_detected_language_is_reported(client: OpenAI, hearing: Path, speech: bytes) -> None:
    with Transcriber(hearing, threads=1) as transcriber:
        transcription = transcriber.transcribe(speech, TranscribeOptions())
        text = transcription.text()
    language = transcription.info.language
    assert language in ("en", "de", "zh")
    answer = client.audio.transcriptions.create(
        model="hearing", file=("call.wav", speech), response_format="verbose_json"
    )
    assert (answer.text, answer.language) == (text, NAMES[language])


def test_each_chunk_may_have_its_own_language(client: OpenAI, speech: bytes) -> None:
    answer: Any = client.audio.transcriptions.create(
        model="hearing",
        file=("call.wav", speech),
        response_format="verbose_json",
        extra_body={"multilingual": True, "language": "auto"},
    )
    assert answer.segments
    assert all(segment.language in ("en", "de", "zh") for segment in answer.segments)


def test_captions_have_a_width(client: OpenAI, speech: bytes) -> None:
    captions: Any = client.audio.transcriptions.create(
        model="hearing",
        file=("call.wav", speech),
        language="en",
        response_format="srt",
        extra_body={"max_line_width": 12},
    )
    parts = list(srt.parse(captions))
    assert len(parts) > 1
    assert all(len(part.content) <= 12 or " " not in part.content for part in parts)


def test_a_stream_brings_the_same_text_in_pieces(
    client: OpenAI, speech: bytes, expected: str
) -> None:
    stream = client.audio.transcriptions.create(
        model="hearing", file=("call.wav", speech), language="en", stream=True
    )
    *deltas, done = list(stream)
    assert done.type == "transcript.text.done"
    assert done.text == expected
    pieces = [event.delta for event in deltas if event.type == "transcript.text.delta"]
    assert "".join(pieces).strip() == expected


def test_translations(client: OpenAI, speech: bytes) -> None:
    answer = client.audio.translations.create(model="hearing", file=("call.wav", speech))
    assert isinstance(answer.text, str)


def samples_of(recording: bytes) -> bytes:
    """Return what follows a WAV file's header."""
    return recording.partition(b"data")[2][4:]


def test_a_recording_without_a_header_is_transcribed(
    client: OpenAI, speech: bytes, expected: str
) -> None:
    mono = samples_of(speech)
    stereo = np.repeat(np.frombuffer(mono, "<i2"), 2).tobytes()
    for samples, channels in ((mono, {}), (stereo, {"channels": 2})):
        answer = client.audio.transcriptions.create(
            model="hearing",
            file=("call.pcm", samples),
            language="en",
            extra_body={"raw_format": "s16le", "sample_rate": 16_000, **channels},
        )
        assert answer.text == expected


def test_a_track_is_transcribed(client: OpenAI, speech: bytes, expected: str) -> None:
    whole = np.frombuffer(samples_of(speech), "<i2").repeat(3)[None]
    samples = (whole / 32768).astype(np.float32)
    data = film("matroska", Track([(0, samples * 0)]), Track([(0, samples)]), codec="flac")

    def said(**fields: Any) -> Any:
        return client.audio.transcriptions.create(
            model="hearing",
            file=("film.mkv", data),
            language="en",
            response_format="verbose_json",
            extra_body=fields,
        ).model_dump()

    assert said()["text"] == ""
    assert "audio track 1 of 2; `track` chooses another" in said()["warnings"][0]
    heard = said(track=2)
    assert heard["text"]
    assert not heard.get("warnings")


def test_channels_are_transcribed_one_by_one(client: OpenAI, speech: bytes, expected: str) -> None:
    """One speaker on the left, then the other on the right; then the right channel is silent."""
    voice = np.frombuffer(samples_of(speech), "<i2")
    pause = np.zeros_like(voice)
    left, right = np.concatenate([voice, pause]), np.concatenate([pause, voice])

    def ask(channels: list[Any], **fields: Any) -> dict[str, Any]:
        answer = client.audio.transcriptions.create(
            model="hearing",
            file=("call.pcm", np.stack(channels, axis=1).tobytes()),
            language="en",
            response_format="verbose_json",
            extra_body={
                "raw_format": "s16le",
                "sample_rate": 16_000,
                "channels": len(channels),
                **fields,
            },
        )
        content: dict[str, Any] = answer.model_dump()
        return content

    both = ask([left, right], multichannel=True)
    segments = both["segments"]
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    starts = [segment["start"] for segment in segments]
    assert starts == sorted(starts)
    for channel, samples in ((1, left), (2, right)):
        mine = [segment for segment in segments if segment["channel"] == channel]
        assert mine
        assert "".join(segment["text"] for segment in mine).strip() == ask([samples])["text"]
    assert (both["duration"], both["usage"]["seconds"]) == (6.0, 12)
    alone = ask([voice, pause], multichannel=True)
    assert alone["text"] == expected
    assert "channel 2: call.pcm contains only silence" in alone["warnings"][0]
    assert ask([pause, voice], channel=2)["text"] == expected
    assert ask([pause, voice], channel=1)["text"] == ""
    assert "channel" not in ask([voice, voice])["segments"][0]


@pytest.mark.parametrize("kind", ["mp3", "flac", "ogg", "m4a", "webm"])
def test_every_format_is_transcribed(kind: str, client: OpenAI) -> None:
    """Silence gives 200 and an empty text, whatever its format."""
    rate = 16_000 if kind == "flac" else 48_000 if kind in ("ogg", "webm") else 44_100
    data = encode(kind, np.zeros(5 * rate, np.float32))
    answer = client.audio.transcriptions.create(model="hearing", file=(f"call.{kind}", data))
    assert answer.text == ""


# Inputs that must be refused.


def _nan() -> bytes:
    samples = tone(1, 48_000)
    samples[100] = np.nan
    return encode("wav-float", samples)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"language": "klingon"}, "language"),
    ({"language": "fr"}, "language"),
    ({"response_format": "docx"}, "response_format"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"temperature": "-1"}, "temperature"),
    ({"stream": "true", "response_format": "srt"}, "stream"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
    (
        {"timestamp_granularities[]": "token", "response_format": "verbose_json"},
        "timestamp_granularities[0]",
    ),
    ({"include[]": "logprobs"}, "include"),
    ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
    ({"chunking_strategy": '{"type": "server_vad"'}, "chunking_strategy"),
    ({"chunking_strategy": '{"type": "other"}'}, "chunking_strategy.type"),
    ({"chunking_strategy[threshold]": "0.5"}, "chunking_strategy.type"),
    (
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "7"},
        "chunking_strategy.threshold",
    ),
    (
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[prefix_padding_ms]": "9999"},
        "chunking_strategy.prefix_padding_ms",
    ),
    (
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[silence_duration_ms]": "-1"},
        "chunking_strategy.silence_duration_ms",
    ),
    ({"chunking_strategy[type]": "server_vad", "vad_threshold": "0.4"}, "chunking_strategy"),
    ({"chunking_strategy[type]": "server_vad", "vad": "false"}, "chunking_strategy"),
    ({"chunking_strategy[type]": ["server_vad", "server_vad"]}, "chunking_strategy"),
    ({"chunking_strategy": "auto", "chunking_strategy[type]": "server_vad"}, "chunking_strategy"),
    (
        {"chunking_strategy": '{"type": "server_vad"}', "chunking_strategy[threshold]": "0.5"},
        "chunking_strategy",
    ),
    ({"language[code]": "en"}, "language"),
    ({"channel": str(2**64)}, "channel"),
    ({"track": str(2**64)}, "track"),
    ({"vad_min_speech_ms": str(2**64)}, "vad_min_speech_ms"),
    ({"beam_size": "0"}, "beam_size"),
    ({"best_of": "11"}, "best_of"),
    ({"temperature[]": ["0", "2"]}, "temperature[1]"),
    ({"no_speech_threshold": "1.5"}, "no_speech_threshold"),
    ({"log_prob_threshold": "0.5"}, "log_prob_threshold"),
    ({"compression_ratio_threshold": "much"}, "compression_ratio_threshold"),
    ({"hallucination_silence_threshold": "-1"}, "hallucination_silence_threshold"),
    ({"multilingual": "true", "language": "en"}, "multilingual"),
    ({"max_line_width": "20"}, "max_line_width"),
    ({"max_line_width": "0", "response_format": "srt"}, "max_line_width"),
    ({"language": ["en", "de"]}, "language"),
    ({"language": "en", "language[]": "en"}, "language"),
    ({"track": "2"}, "track"),
    ({"track": "0"}, "track"),
    ({"track": "first"}, "track"),
    ({"channel": "2"}, "channel"),
    ({"channel": "0"}, "channel"),
    ({"multichannel": "true", "stream": "true"}, "multichannel"),
    ({"multichannel": "true", "channel": "1"}, "multichannel"),
    ({"raw_format": "s16le"}, "sample_rate"),
    ({"raw_format": "mp3", "sample_rate": "8000"}, "raw_format"),
    ({"raw_format": "s16le", "sample_rate": "1"}, "sample_rate"),
    ({"raw_format": "s16le", "sample_rate": "8000", "channels": "0"}, "channels"),
    ({"sample_rate": "8000"}, "sample_rate"),
    ({"channels": "2"}, "channels"),
    ({"file": "hello"}, "file"),
    ({"file[]": "hello"}, "file[]"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS)
def test_bad_fields_are_named(
    fields: dict[str, Any], param: str, server: Server, speech: bytes
) -> None:
    with server.client() as client:
        answer = client.post(TRANSCRIPTIONS, files={"file": ("call.wav", speech)}, data=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_form_without_a_file_and_other_bodies_are_refused(server: Server, speech: bytes) -> None:
    with server.client() as client:
        none = client.post(TRANSCRIPTIONS, files={"model": (None, "hearing")})
        assert (none.status_code, none.json()["error"]["param"]) == (400, "file")
        text = client.post(TRANSCRIPTIONS, files={"file": (None, "hello")})
        assert (text.status_code, text.json()["error"]["param"]) == (400, "file")
        # What curl -F "file=<call.wav" sends.
        large = client.post(TRANSCRIPTIONS, files={"file": (None, speech)})
        assert len(speech) > 2**16
        assert (large.status_code, large.json()["error"]["param"]) == (400, "file")
        assert "send the recording as a file" in large.json()["error"]["message"]
        assert client.post(TRANSCRIPTIONS, json={"model": "hearing"}).status_code == 415
        broken = client.post(
            TRANSCRIPTIONS,
            content=b"--x\r\nnonsense",
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
        assert broken.status_code == 400
        other = client.post(
            TRANSCRIPTIONS, files={"file": ("a.wav", speech)}, data={"model": "whisper-1"}
        )
        assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


def test_a_client_that_disconnects_leaves_nothing_behind(server: Server) -> None:
    samples = np.concatenate(list(Recording(CALL, sample_rate=48_000)))
    data = encode("ogg", np.concatenate([samples, samples]))
    with (
        server.client() as client,
        client.stream(
            "POST",
            TRANSCRIPTIONS,
            files={"file": ("call.ogg", data)},
            data={"stream": "true", "language": "en"},
        ) as answer,
    ):
        assert next(answer.iter_lines()).startswith("data: ")
    until(lambda: server.metrics()["galley_requests_running"] == 0)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_transcribed_seconds_are_counted(client: OpenAI, server: Server, speech: bytes) -> None:
    name = f"galley_audio_seconds_total{{endpoint={TRANSCRIPTIONS}}}"
    before = server.metrics().get(name, 0.0)
    client.audio.transcriptions.create(model="hearing", file=("a.wav", speech), language="en")
    assert server.metrics()[name] == pytest.approx(before + 3.0)


def test_a_speech_model_refuses_text(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot generate; it can score, transcribe"):
        client.completions.create(model="hearing", prompt="Hello")


def test_an_error_on_the_way_ends_a_stream(server: Server) -> None:
    """Errors found later are sent as an event, since the status line has already been sent."""
    samples = np.concatenate(list(Recording(CALL)))
    broken = np.concatenate([samples, samples, samples[:100_000], [np.nan]]).astype(np.float32)
    data = encode("wav-float-16", broken)
    fields = {"stream": "true", "language": "en", "temperature": "0.5"}
    with server.client() as client:
        late = client.post(TRANSCRIPTIONS, files={"file": ("call.wav", data)}, data=fields)
        early = client.post(TRANSCRIPTIONS, files={"file": ("call.wav", _nan())}, data=fields)
    events = [json.loads(line[6:]) for line in late.text.splitlines() if line.startswith("data: {")]
    assert events[0]["type"] == "transcript.text.delta"
    assert "not numbers" in events[-1]["error"]["message"]
    assert early.status_code == 400


@pytest.mark.parametrize("operation", HEARD, ids=lambda operation: operation.label)
def test_answers_are_as_documented(operation: Any, server: Server, speech: bytes) -> None:
    check_answers(server, operation)
    with server.client() as client:
        answer = client.post(operation.path, files={"file": ("a.wav", speech)})
    assert answer.status_code == 200
    answer.request.read()  # checked by the validator
    operation.validate_response(answer)


def test_a_server_whose_extra_is_broken_says_how_to_get_it(
    hearing: Path, speech: bytes, tmp_path: Path
) -> None:
    missing = broken(tmp_path, "python_multipart")
    with (
        Server(hearing, tmp_path / "log", threads=1, environ=missing) as server,
        server.client() as client,
    ):
        answer = client.post(TRANSCRIPTIONS, files={"file": ("a.wav", speech)})
    assert answer.status_code == 501
    assert "pip install 'galley-inference[speech]'" in answer.json()["error"]["message"]
