"""System messages after other messages, and continuing the last message, for each kind of template."""

from pathlib import Path
from typing import Any

import pytest

from galley.errors import RequestError
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from tests.text import templates, trained

Messages = list[dict[str, Any]]

_WRITE = "[{{ m.role }}:{{ m.content }}]"
FREE = "{% for m in messages %}" + _WRITE + "{% endfor %}"
ONLY_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    + _WRITE
    + "{% endfor %}"
)
LEAVES_OUT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    + _WRITE
    + "{% endif %}{% endfor %}"
)
GATHERS = (
    "{% for m in messages if m.role == 'system' %}" + _WRITE + "{% endfor %}"
    "{% for m in messages if m.role != 'system' %}" + _WRITE + "{% endfor %}"
)
LAST_ONE_WINS = (
    "{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endfor %}{% if ns.s %}[system:{{ ns.s }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}" + _WRITE + "{% endfor %}"
)
ALTERNATES = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role in ('user', 'assistant') %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% elif m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system') }}{% endif %}" + _WRITE + "{% endfor %}"
)
CANNOT = [ONLY_FIRST, LEAVES_OUT, GATHERS, LAST_ONE_WINS, ALTERNATES]


def said(*turns: str) -> Messages:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[turn[0]], "content": turn} for turn in turns]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    trained.byte_level(folder)
    return Tokenizer.load(folder)


def rendered(source: str, tokenizer: Tokenizer, messages: Messages, **options: Any) -> str:
    template = ChatTemplate(source, file="x")
    ids = template.encode(tokenizer, messages, add_generation_prompt=False, **options)
    return tokenizer.decode(ids, skip_special_tokens=False)


PLACED = [
    (("s1", "u1", "s2"), "[system:s1][user:u1\n\ns2]"),
    (("u1", "s2"), "[user:u1\n\ns2]"),
    (("s1", "s2", "u1", "s3", "s4"), "[system:s1\n\ns2][user:u1\n\ns3\n\ns4]"),
    (("u1", "s2", "a1", "u2"), "[user:u1\n\ns2][assistant:a1][user:u2]"),
    (("u1", "a1", "s2", "u2"), "[user:u1][assistant:a1][user:s2\n\nu2]"),
    (("u1", "a1", "t1", "s2"), "[user:u1][assistant:a1][tool:t1\n\ns2]"),
    (("u1", "a1", "s2"), "[user:u1][assistant:a1][user:s2]"),
]


@pytest.mark.parametrize("source", CANNOT)
@pytest.mark.parametrize(("turns", "expected"), PLACED)
def test_a_late_system_message_joins_one_that_the_template_takes(
    tokenizer: Tokenizer, source: str, turns: tuple[str, ...], expected: str
) -> None:
    assert rendered(source, tokenizer, said(*turns)) == expected


@pytest.mark.parametrize(("turns", "_"), PLACED)
def test_a_template_that_takes_it_gets_it_as_it_is(
    tokenizer: Tokenizer, turns: tuple[str, ...], _: str
) -> None:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    as_given = "".join(f"[{names[turn[0]]}:{turn}]" for turn in turns)
    assert rendered(FREE, tokenizer, said(*turns)) == as_given


@pytest.mark.parametrize("source", CANNOT)
def test_what_a_prompt_begins_with_is_not_changed_by_a_later_system_message(
    tokenizer: Tokenizer, source: str
) -> None:
    before = rendered(source, tokenizer, said("s1", "u1", "a1"))
    assert rendered(source, tokenizer, said("s1", "u1", "a1", "s2", "u2")).startswith(before)


@pytest.mark.parametrize(
    "name", ["CHATML", "LLAMA3", "LLAMA3_TOOLS", "THINKING", "MISTRAL", "LLAMA2"]
)
def test_published_templates_write_it_behind_what_was_said_before(
    tokenizer: Tokenizer, name: str
) -> None:
    source = getattr(templates, name)
    prompt = rendered(source, tokenizer, said("u_question", "s_rule", "a_answer", "u_more"))
    places = [prompt.find(text) for text in ("u_question", "s_rule", "a_answer", "u_more")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("content", ["The cat", "", "The cat ", "<|im_end|> x", "a\nb\n"])
@pytest.mark.parametrize("name", ["CHATML", "THINKING", "LLAMA3", "MISTRAL"])
def test_a_last_message_is_continued_where_it_ends(
    tokenizer: Tokenizer, name: str, content: str
) -> None:
    source = getattr(templates, name)
    question = said("u1")
    template = ChatTemplate(source, file="x")
    last = {"role": "assistant", "content": content}
    ids = template.encode(tokenizer, [*question, last], continue_last=True)
    opened = rendered(source, tokenizer, [*question, {**last, "content": "x"}])
    assert (
        tokenizer.decode(ids, skip_special_tokens=False) == opened[: opened.rindex("x")] + content
    )
    end = trained.token_id(tokenizer, "<|im_end|>")
    whole = template.encode(tokenizer, [*question, last], add_generation_prompt=False)
    assert ids.count(end) == whole.count(end) - (name in ("CHATML", "THINKING"))


def test_a_template_that_leaves_the_last_message_out_cannot_continue_it(
    tokenizer: Tokenizer,
) -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(RequestError, match="cannot be continued"):
        rendered(source, tokenizer, said("u1", "a1"), continue_last=True)


def test_the_file_of_a_template_may_be_missing(tmp_path: Path, tokenizer: Tokenizer) -> None:
    trained.byte_level(tmp_path)
    template = ChatTemplate.load(tmp_path)
    with pytest.raises(RequestError, match="no chat template"):
        template.encode(tokenizer, said("u1", "s2"))
