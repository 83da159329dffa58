"""Requests and Outputs of each kind across the process boundary, and their replay to a new engine."""

import msgspec
import pytest

from galley.service.admission import Admission
from galley.service.frames import (
    HEADER,
    Step,
    Submit,
    decode_from_engine,
    decode_to_engine,
    encode,
    steps_of,
)
from galley.types import (
    Align,
    Embed,
    EngineRequest,
    Generate,
    Output,
    Payload,
    Result,
    SamplingParams,
    Speak,
    Tensor,
    Tensors,
    TokenLogprob,
    Tokens,
    Transcribe,
    Vector,
)
from galley.types.audio import Alignment, EncoderInput, SpeechRules, TimestampRules
from galley.types.engine_stats import EngineStats

AUDIO = EncoderInput(frames=1, mels=2, data=bytes(8))
PARAMS = SamplingParams(temperature=0.5, max_tokens=9, prompt_logprobs=1, seed=3)
RULES = SpeechRules(
    suppress_tokens=(4, 5), no_speech=(0, 7), timestamps=TimestampRules(begin=9, text_end=8)
)
PAYLOADS: list[Generate | Transcribe | Align | Embed] = [
    Generate(prompt=[1, 2, 3], sampling=PARAMS),
    Transcribe(prompt=[1, 2], encoder_input=AUDIO, sampling=PARAMS, rules=RULES),
    Align(prompt=[1, 2, 3, 4], encoder_input=AUDIO),
    Embed(prompt=[1, 2, 3, 4, 5], second=3, dimensions=8),
]
RESULTS: list[Result] = [
    Tokens(tokens=[4, 5], logprobs=[TokenLogprob(4, -0.5), TokenLogprob(5, -1.0)], scores=[-1.0]),
    Vector(bytes(16)),
    Alignment(tokens=1, heads=1, rows=2, data=bytes(8)),
]


def kind(payload: Payload) -> str:
    return type(payload).__name__


@pytest.mark.parametrize("payload", PAYLOADS, ids=kind)
def test_a_payload_arrives_as_the_kind_it_is(payload: Generate | Embed) -> None:
    request = EngineRequest(id="r", payload=payload, tenant="t", weight=2.0, cache_salt="s")
    arrived = decode_to_engine(encode(Submit(request))[HEADER.size :])
    assert arrived == Submit(request)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_arrives_as_the_kind_it_is(result: Result) -> None:
    step = Step([Output(request_id="r", result=result)], EngineStats(), 1)
    arrived = decode_from_engine(encode(step)[HEADER.size :])
    assert arrived == step
    expected = result.tokens if isinstance(result, Tokens) else []
    assert step.outputs[0].tokens == expected


@pytest.mark.parametrize("payload", PAYLOADS, ids=kind)
def test_only_what_draws_tokens_has_sampling(payload: Payload) -> None:
    draws = isinstance(payload, Generate | Transcribe)
    assert ("sampling" in payload.__struct_fields__) == draws
    assert payload.writes == (9 if draws else 0)
    assert payload.reads == len(payload.prompt)  # type: ignore[attr-defined]


def test_a_new_engine_does_not_repeat_what_came_with_the_first_output() -> None:
    text, transcript, *whole = PAYLOADS
    begun, again = text.resumed([], answered=False), text.resumed([6], answered=True)
    assert begun == text
    assert again == Generate(
        prompt=[1, 2, 3],
        sampling=msgspec.structs.replace(PARAMS, prompt_logprobs=None),
        output=[6],
    )
    heard = transcript.resumed([6], answered=True)
    assert isinstance(heard, Transcribe)
    assert (heard.output, heard.rules.no_speech, heard.sampling.prompt_logprobs) == (
        [6],
        None,
        None,
    )
    assert heard.rules.suppress_tokens == RULES.suppress_tokens
    assert [payload.resumed([], answered=False) for payload in whole] == whole


def test_what_was_delivered_before_a_request_was_moved_counts_when_it_is_resumed_again() -> None:
    """A replica elsewhere gets requests with output, and resumes them when its engine dies."""
    text, transcript, *_ = PAYLOADS
    for payload in (text, transcript):
        again = payload.resumed([6, 7], answered=True).resumed([8], answered=True)
        assert isinstance(again, Generate | Transcribe)
        assert again.output == [6, 7, 8]
    spoken = Speak(text="a", voice="v", samples=100)
    assert spoken.resumed([], answered=True, samples=20).samples == 120


@pytest.mark.parametrize("payload", PAYLOADS, ids=kind)
def test_admission_counts_what_a_payload_reads_and_writes(
    payload: Generate | Transcribe | Align | Embed,
) -> None:
    admission = Admission(seats=1, max_queue=1)
    claim = admission.add(EngineRequest(id="r", payload=payload), now=0.0)
    assert claim.owed == payload.reads + payload.writes


def test_the_outputs_of_a_step_are_divided_by_their_data() -> None:
    def output(number: int, size: int) -> Output:
        tensor = Tensor(name="y", datatype="UINT8", shape=(size,), data=bytes(size))
        return Output(request_id=f"r{number}", result=Tensors((tensor,)))

    text = Output(request_id="text", result=RESULTS[0])
    small = [output(number, 1 << 10) for number in range(100)]
    large = [output(number, 1 << 20) for number in range(100, 102)]
    steps = list(steps_of([text, *small, *large], EngineStats(steps=1), 7))
    found = [[one.request_id for one in step.outputs] for step in steps]
    names = ["text", *(f"r{number}" for number in range(102))]
    assert [name for step in found for name in step] == names
    assert list(map(len, found)) == [66, 36, 1, 0]
    assert all(step.frames_seen == 7 and step.stats.steps == 1 for step in steps)
    assert [step.outputs for step in steps_of([], EngineStats(), 7)] == [[]]
