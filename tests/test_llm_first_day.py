"""``galley.LLM`` with the habits of other libraries: short forms, clear errors, reprs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import galley
from galley import LLM, GalleyError, RequestError, SamplingParams, errors
from tests.conftest import CheckpointMaker

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(checkpoint: CheckpointMaker) -> Iterator[LLM]:
    with LLM(checkpoint("llama"), threads=1) as llm:
        yield llm


def test_a_text_is_a_conversation(llm: LLM) -> None:
    message = {"role": "user", "content": "hello"}
    expected = llm.chat([message], GREEDY)[0].token_ids
    several: list[Any] = ["hello", message, [[message]], ["hello"], ([message],)]
    for form in several:
        assert [output.token_ids for output in llm.chat(form, GREEDY)] == [expected]
    both = llm.chat([several[0], [message]], GREEDY)
    assert [output.token_ids for output in both] == [expected, expected]
    streamed = [token for delta in llm.chat_stream("hello", GREEDY) for token in delta.token_ids]
    assert streamed == expected


def test_texts_and_arrays_are_scored(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the cat sat")
    expected = llm.score([ids])
    assert len(expected[0]) == len(ids) - 1
    forms: list[Any] = ["the cat sat", ["the cat sat"], ids, tuple(ids), np.array(ids)]
    for form in [*forms, np.array([ids]), torch.tensor([ids]), (i for i in [ids])]:
        assert llm.score(form) == expected


def test_a_prompt_is_streamed(llm: LLM) -> None:
    whole = llm.generate("the cat", GREEDY)[0]
    deltas = list(llm.stream("the cat", GREEDY))
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    with pytest.raises(RequestError, match="n must be 1"):
        llm.stream("the cat", SamplingParams(n=2))


@pytest.mark.parametrize(
    ("method", "value", "param", "error"),
    [
        ("generate", None, "prompts", "a prompt is a text or a list of token ids, got None"),
        ("generate", ["a", 5.5], "prompts", r"got 5.5 \(float\)"),
        ("generate", [[1, "a"]], "prompts", "got .1, 'a'. .list"),
        ("generate", {"prompt": "a"}, "prompts", "got {'prompt': 'a'}"),
        ("score", b"bytes", "prompts", "bytes"),
        ("score", [[True]], "prompts", "True"),
        ("stream", ["a", "b"], "prompt", "expected one text or one list of token ids"),
        ("chat", 7, "messages", r"expected a text, or messages such as .*; got 7 \(int\)"),
        ("chat", [{"content": "a"}], "messages", "got {'content': 'a'}"),
        ("chat", [[{"role": "user", "content": "a"}], 3], "messages", "got 3"),
        ("chat_stream", [["a"]], "messages", r"got \['a'\]"),
    ],
)
def test_what_is_not_a_prompt_is_refused(
    llm: LLM, method: str, value: object, param: str, error: str
) -> None:
    with pytest.raises(RequestError, match=error) as caught:
        getattr(llm, method)(value)
    assert caught.value.param == param


def test_what_is_not_sampling_parameters_is_refused(llm: LLM) -> None:
    for wrong in ({"temperature": 0}, 0.5, "greedy", [GREEDY, None]):
        with pytest.raises(RequestError, match=r"expected SamplingParams\(temperature=0") as caught:
            llm.generate(["a", "b"], wrong)  # type: ignore[arg-type]
        assert caught.value.param == "params"


def test_reprs_are_readable(checkpoint: CheckpointMaker) -> None:
    llm = LLM(checkpoint("llama"), threads=1)
    assert repr(llm).startswith("LLM('")
    for part in ("llama", "float32 weights", "executor 'cpu'", "context of 512 tokens"):
        assert part in repr(llm)
    output = llm.generate("the cat", GREEDY)[0]
    prompt = len(llm.tokenizer.encode("the cat"))
    assert repr(output).endswith(f"(6 tokens, length); prompt of {prompt} tokens)")
    assert len(repr(llm.generate("cat", SamplingParams(max_tokens=500, ignore_eos=True)))) < 250
    assert repr(llm.tokenizer) == f"Tokenizer({llm.tokenizer.vocab_size} tokens)"
    llm.close()
    assert repr(llm) == "LLM(closed)"


def test_progress_is_shown_on_request(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["a", "b", "c"]
    quiet = llm.generate(prompts, GREEDY)
    assert capsys.readouterr().err == ""
    loud = llm.generate(prompts, GREEDY, progress=True)
    assert "3/3" in capsys.readouterr().err
    assert [o.token_ids for o in loud] == [o.token_ids for o in quiet]


def test_every_error_is_reachable_from_galley() -> None:
    source = ast.parse(Path(errors.__file__).read_text(encoding="utf-8"))
    names = [node.name for node in source.body if isinstance(node, ast.ClassDef)]
    assert {"GalleyError", "RequestError", "ModelNotFound", "AudioError"} <= set(names)
    for name in names:
        assert name in galley.__all__
        assert issubclass(getattr(galley, name), GalleyError)
