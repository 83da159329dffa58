from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.errors import RequestError
from galley.text.detokenizer import detokenizer
from galley.text.stops import StopScanner
from galley.text.stream import Delta, TextStream, describe
from galley.text.tokenizer import Tokenizer
from galley.types import FinishReason, Output, SamplingParams, TokenLogprob, Tokens
from tests.text import trained


def outputs(
    tokens: list[int], cuts: list[int], reason: FinishReason | None, *, logprobs: bool = False
) -> list[Output]:
    edges = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [
        Output(
            request_id="r",
            result=Tokens(
                tokens=tokens[a:b],
                logprobs=[TokenLogprob(t, -float(t)) for t in tokens[a:b]] if logprobs else None,
            ),
            finish_reason=reason if b == len(tokens) else None,
        )
        for a, b in pairwise(edges)
    ]


def feed(stream: TextStream, parts: list[Output]) -> list[Delta]:
    deltas = []
    for part in parts:
        deltas.append(stream.feed(part))
        if stream.finish_reason is not None:
            break
    return deltas


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_plain(text)


@given(
    tokens=st.lists(st.integers(0, 600), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40)),
    stop=st.lists(st.sampled_from(["e", " ", "th", "he ", "\ufffd"]), max_size=3),
    min_tokens=st.integers(0, 10),
)
def test_text_is_the_decoded_text_up_to_the_stop(
    tokenizer: Tokenizer, tokens: list[int], cuts: list[int], stop: list[str], min_tokens: int
) -> None:
    stream = TextStream(tokenizer, stop=tuple(stop), min_tokens=min_tokens)
    deltas = feed(stream, outputs(tokens, cuts, "length", logprobs=True))

    plain = detokenizer(tokenizer)
    unsearched = plain.feed(tokens[:min_tokens])
    scanner = StopScanner(stop)
    rest = scanner.feed(tokenizer.decode(tokens)[len(unsearched) :]) + scanner.finish()
    if len(tokens) > min_tokens:
        assert stream.text == unsearched + rest
        assert stream.stopped == (scanner.matched is not None)
    else:
        assert stream.text == tokenizer.decode(tokens)
    assert stream.finish_reason == ("stop" if stream.stopped else "length")
    if not stream.stopped:
        assert stream.token_ids == tokens
    assert stream.token_ids == tokens[: len(stream.token_ids)]

    assert "".join(delta.text for delta in deltas) == stream.text
    assert [t for delta in deltas for t in delta.token_ids] == stream.token_ids
    assert stream.logprobs is not None
    assert [entry.token for entry in stream.logprobs] == stream.token_ids
    assert [e for delta in deltas for e in delta.logprobs or []] == stream.logprobs
    assert all(len(delta.text_offsets) == len(delta.token_ids) for delta in deltas)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == stream.finish_reason


def test_stop_string_over_several_tokens_drops_what_follows(tokenizer: Tokenizer) -> None:
    tokens = ids_of(tokenizer, "Hello fox, END and more")
    stream = TextStream(tokenizer, stop=(", EN",))
    delta = stream.feed(outputs(tokens, [], None, logprobs=True)[0])
    assert delta.text == stream.text == "Hello fox"
    assert delta.finish_reason == "stop"
    assert stream.stopped
    assert delta.token_ids == tokens[: len(delta.token_ids)]
    assert len(delta.token_ids) < len(tokens)
    assert len(delta.logprobs or []) == len(delta.token_ids)
    assert tokenizer.decode(delta.token_ids).startswith("Hello fox, EN")
    assert tokenizer.decode(delta.token_ids[:-1]).find(", EN") == -1
    late = stream.feed(Output(request_id="r", result=Tokens(tokens=[5]), finish_reason="abort"))
    assert late == Delta()
    assert (stream.text, stream.finish_reason) == ("Hello fox", "stop")


def test_a_stop_that_never_completes_is_text(tokenizer: Tokenizer) -> None:
    tokens = ids_of(tokenizer, "Hello EN")
    stream = TextStream(tokenizer, stop=("END",))
    deltas = feed(stream, outputs(tokens, list(range(99)), "length"))
    assert stream.text == "Hello EN"
    assert deltas[-1].text.endswith("EN")
    assert (stream.finish_reason, stream.stopped) == ("length", False)


def test_a_stop_string_beats_the_engines_reason(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, stop=("END",))
    feed(stream, outputs(ids_of(tokenizer, "Hello END"), [], "length"))
    assert (stream.text, stream.finish_reason, stream.stopped) == ("Hello ", "stop", True)


def test_the_ending_stop_token_has_no_text(tokenizer: Tokenizer) -> None:
    *tokens, last = ids_of(tokenizer, "Hello the")
    cases: list[tuple[FinishReason, str]] = [
        ("stop", tokenizer.decode(tokens)),
        ("length", "Hello the"),
    ]
    for reason, text in cases:
        stream = TextStream(tokenizer, hidden={last})
        delta = stream.feed(outputs([*tokens, last], [], reason, logprobs=True)[0])
        assert stream.text == delta.text == text
        assert stream.token_ids == [*tokens, last]
        assert len(stream.logprobs or []) == len(delta.text_offsets) == len(tokens) + 1
    assert not stream.stopped


def test_a_stop_token_that_was_not_the_end_is_text(tokenizer: Tokenizer) -> None:
    """min_tokens and ignore_eos let such tokens pass."""
    *_, word = ids_of(tokenizer, "Hello the")
    stream = TextStream(tokenizer, hidden={word})
    feed(stream, outputs([word, word], [1], "length"))
    assert stream.text == tokenizer.decode([word, word])


def test_min_tokens_of_text_are_not_searched(tokenizer: Tokenizer) -> None:
    tokens = ids_of(tokenizer, "Hello Hello Hello")
    first = len(ids_of(tokenizer, "Hello Hello"))
    stream = TextStream(tokenizer, stop=("Hello",), min_tokens=first)
    feed(stream, outputs(tokens, [], None))
    assert stream.text == "Hello Hello "
    assert stream.stopped


def test_offsets_are_where_the_tokens_begin(tokenizer: Tokenizer) -> None:
    text = "Hello the fox jumps"
    tokens = ids_of(tokenizer, text)
    stream = TextStream(tokenizer)
    deltas = feed(stream, outputs(tokens, [1, 3], "length"))
    offsets = [offset for delta in deltas for offset in delta.text_offsets]
    pieces = [text[a:b] for a, b in pairwise([*offsets, len(text)])]
    leading = [tokenizer.token_text(token) for token in tokens]
    assert "".join(pieces) == text
    assert pieces[1:] == leading[1:]
    assert pieces[0] == leading[0].lstrip(" ")


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_other_ends_flush_what_was_held_back(byte_level: Tokenizer, reason: FinishReason) -> None:
    snowman = ids_of(byte_level, "a☃")[:-1]
    stream = TextStream(byte_level, stop=("\ufffd!",))
    assert stream.feed(Output(request_id="r", result=Tokens(tokens=snowman))).text == "a"
    assert stream.feed(Output(request_id="r", finish_reason=reason)).text == "\ufffd"
    assert stream.finish_reason == reason


def test_without_requested_logprobs_there_are_none(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    assert stream.feed(Output(request_id="r", result=Tokens(tokens=[300]))).logprobs is None
    assert stream.logprobs is None


def test_describe(byte_level: Tokenizer) -> None:
    part, *_ = ids_of(byte_level, "☃")
    end = trained.token_id(byte_level, "<|eot_id|>")
    word = ids_of(byte_level, " fox")[0]
    chosen, top = describe(byte_level, TokenLogprob(part, -0.5, ((end, -0.1), (word, -2.0))))
    assert (chosen.text, chosen.logprob) == ("\ufffd", -0.5)
    assert "☃".encode().startswith(chosen.bytes)
    assert [(t.text, t.bytes, t.logprob) for t in top] == [
        ("<|eot_id|>", b"<|eot_id|>", -0.1),
        (byte_level.token_text(word), byte_level.token_bytes(word), -2.0),
    ]
    assert describe(byte_level, TokenLogprob(word, -1.0))[1] == []


def test_a_stream_for_a_request_hides_what_ends_it(byte_level: Tokenizer) -> None:
    ids = ids_of(byte_level, "the cat")
    end = 7  # a text of its own, where it does not end the sequence
    for params, ends, shown in (
        (SamplingParams(), (end,), False),
        (SamplingParams(ignore_eos=True), (end,), True),
        (SamplingParams(ignore_eos=True, stop_token_ids=(end,)), (), False),
    ):
        stream = TextStream.for_request(byte_level, params, ends)
        stream.feed(Output(request_id="r", result=Tokens(tokens=[*ids, end]), finish_reason="stop"))
        assert stream.text == "the cat" + (byte_level.token_text(end) if shown else "")
    params = SamplingParams(stop=("a",), min_tokens=len(ids))
    stream = TextStream.for_request(byte_level, params, ())
    stream.feed(Output(request_id="r", result=Tokens(tokens=[*ids, *ids])))
    assert (stream.text, stream.stopped) == ("the catthe c", True)


def test_without_a_tokenizer_there_are_only_tokens() -> None:
    stream = TextStream.for_request(None, SamplingParams(), (9,))
    parts = outputs([5, 6, 9], [1], "stop", logprobs=True)
    deltas = feed(stream, parts)
    assert [d.token_ids for d in deltas if d.token_ids] == [[5], [6, 9]]
    assert (stream.text, stream.token_ids, stream.finish_reason) == ("", [5, 6, 9], "stop")
    assert [entry.token for entry in stream.logprobs or []] == [5, 6, 9]
    with pytest.raises(RequestError, match="stop strings"):
        TextStream.for_request(None, SamplingParams(stop=("x",)), ())
