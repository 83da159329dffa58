"""Rules decide like faster-whisper's generate_with_fallback, and refuse values out of range."""

import inspect
import math
from typing import Any

import faster_whisper
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.errors import RequestError
from galley.speech.fallback import Attempt
from galley.speech.options import QualityRules, TranscribeOptions


def test_defaults_are_faster_whispers() -> None:
    theirs = inspect.signature(faster_whisper.WhisperModel.transcribe).parameters
    rules = QualityRules()
    assert rules.temperatures == tuple(theirs["temperature"].default)
    for name in (
        "beam_size",
        "compression_ratio_threshold",
        "log_prob_threshold",
        "no_speech_threshold",
    ):
        assert getattr(rules, name) == theirs[name].default


maybe = st.none()


@given(
    avg_logprob=st.sampled_from([-2.0, -1.0, -0.5]),
    compression_ratio=st.sampled_from([1.0, 2.4, 3.0]),
    no_speech_prob=st.sampled_from([0.1, 0.6, 0.9]),
    most=maybe | st.just(2.4),
    least=maybe | st.just(-1.0),
    limit=maybe | st.just(0.6),
)
def test_judgment_is_faster_whispers(
    avg_logprob: float,
    compression_ratio: float,
    no_speech_prob: float,
    most: float | None,
    least: float | None,
    limit: float | None,
) -> None:
    """The expected result is its code (transcribe.py of version 1.2.1), with its two ifs in one place."""
    needs_fallback = False
    if most is not None and compression_ratio > most:
        needs_fallback = True
    if least is not None and avg_logprob < least:
        needs_fallback = True
    if limit is not None and no_speech_prob > limit and least is not None and avg_logprob < least:
        needs_fallback = False
    should_skip = limit is not None and no_speech_prob > limit
    if least is not None and avg_logprob > least:
        should_skip = False
    rules = QualityRules(
        compression_ratio_threshold=most, log_prob_threshold=least, no_speech_threshold=limit
    )
    attempt = Attempt((), (avg_logprob,), 0.0, compression_ratio, no_speech_prob)
    assert attempt.is_silence(rules) == should_skip
    # Text that will be skipped is not decoded again, where theirs may be.
    assert attempt.is_good(rules) == (should_skip or not needs_fallback)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": 11}, "beam_size"),
        ({"beam_size": 2.5}, "beam_size"),
        ({"temperatures": ()}, "temperatures"),
        ({"temperatures": (0.0, -0.2)}, "temperatures"),
        ({"temperatures": (math.nan,)}, "temperatures"),
        ({"log_prob_threshold": 1.0}, "log_prob_threshold"),
        ({"no_speech_threshold": 1.5}, "no_speech_threshold"),
        ({"compression_ratio_threshold": "2.4"}, "compression_ratio_threshold"),
    ],
)
def test_rules_out_of_range_are_named(values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param) as refused:
        QualityRules(**values)
    assert refused.value.param == param


def test_what_is_wanted_is_checked() -> None:
    assert TranscribeOptions(language="German").language == "de"
    with pytest.raises(RequestError, match="unknown language 'xx'"):
        TranscribeOptions(language="xx")
    with pytest.raises(RequestError, match="task must be one of transcribe, translate"):
        TranscribeOptions(task="summarize")  # type: ignore[arg-type]
