"""Chat templates with tools: the tools' descriptions, in the form that each template expects."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from galley.errors import RequestError
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.tools.conversation import Tool
from tests.text import trained
from tests.tools.checkpoint import TEMPLATE

END = "<|im_end|>"
TOOL = Tool(
    name="get_weather",
    description=f"Weather. {END}",
    parameters={"type": "object", "properties": {f"ci{END}ty": {"type": "string"}}},
).as_templates_expect()
ARGUMENTS = {"city": "Paris", "days": [1, 2], "naïve": None}


def call(arguments: Any = ARGUMENTS, number: str = "call_1") -> dict[str, Any]:
    return {
        "type": "function",
        "id": number,
        "function": {"name": "get_weather", "arguments": arguments},
    }


def history(*calls: dict[str, Any], content: str | None = None) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": content, "tool_calls": list(calls)},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    trained.byte_level(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def rendered(template: str, tokenizer: Tokenizer, messages: Any, **options: Any) -> str:
    ids = ChatTemplate(template, file="x").encode(tokenizer, messages, **options)
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_ids_equal_those_of_transformers(folder: Path, tokenizer: Tokenizer) -> None:
    plain = {**TOOL, "function": {**TOOL["function"], "description": "W", "parameters": {}}}
    messages = history(call(), call({}), content="I look.")
    truth = AutoTokenizer.from_pretrained(folder)
    expected = truth.apply_chat_template(
        messages,
        tools=[plain],
        chat_template=TEMPLATE,
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    ids = ChatTemplate(TEMPLATE, file="x").encode(
        tokenizer, messages, tools=[plain], variables={"enable_thinking": False}
    )
    assert ids == expected


def test_special_tokens_in_tools_and_variables_stay_text(tokenizer: Tokenizer) -> None:
    source = "{{ tools | tojson }}{{ note }}{{ messages | tojson }}" + END
    ids = ChatTemplate(source, file="x").encode(
        tokenizer, history(call({END: END})), tools=[TOOL], variables={"note": END}
    )
    assert ids.count(trained.token_id(tokenizer, END)) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False).count(END) == 1 + 5


FORMS = {
    "dict": "{{ c.function.arguments | tojson }}",
    "text": "{{ '```' + c.function.arguments + '```' }}",
    "printed": "{{ c.function.arguments }}",
    "items": "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }};{% endfor %}",
}
WRITTEN = '{"city": "Paris", "days": [1, 2], "naïve": null}'


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("when", ["m.content is none", "m.content == ''", "true"])
def test_calls_are_written_as_each_template_expects_them(
    tokenizer: Tokenizer, form: str, when: str
) -> None:
    source = (
        "{% for m in messages %}{% if m.tool_calls and " + when + " %}{% for c in m.tool_calls %}"
        "{{ c.function.name }}:" + FORMS[form] + "{% endfor %}{% else %}{{ m.content + '' }}"
        "{% endif %}{% endfor %}"
    )
    text = rendered(source, tokenizer, history(call()))
    written = 'city="Paris";days=[1, 2];naïve=null;' if form == "items" else WRITTEN
    written = f"```{written}```" if form == "text" else written
    assert text == f"Helloget_weather:{written}21 degrees"


@pytest.mark.parametrize("cut", ['{"city": "Par', "{x}", "[1, 2]", "not JSON", f'{{"a": "{END}'])
@pytest.mark.parametrize("form", [*sorted(FORMS), "whole"])
def test_arguments_that_are_no_json_object_are_written_as_they_are(
    tokenizer: Tokenizer, form: str, cut: str
) -> None:
    """A template that writes each argument separately gets a call with one."""
    whole = "{{ c.function | tojson }}"
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}:"
        + (FORMS | {"whole": whole})[form]
        + "{% endfor %}{% endfor %}"
    )
    text = rendered(source, tokenizer, history(call(cut)))
    function = {"name": "get_weather", "arguments": cut}
    expected = {
        "text": f"```{cut}```",
        "items": f"arguments={json.dumps(cut)};",
        "whole": json.dumps(function, ensure_ascii=False),
    }
    assert text == "get_weather:" + expected.get(form, cut)
    # A complete call next to it is unchanged.
    both = rendered(source, tokenizer, history(call(cut), call()))
    assert both.startswith(text)
    assert both.removeprefix(text) == rendered(source, tokenizer, history(call()))


MISTRAL_IDS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
    "{{ raise_exception('nine!') }}{% endif %}{{ c.id }} {{ c.function | tojson }}{% endfor %}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}{% endfor %}"
)


def test_ids_of_calls_are_as_short_as_the_template_wants(tokenizer: Tokenizer) -> None:
    text = rendered(MISTRAL_IDS, tokenizer, history(call()))
    assert text.split()[0] == text.split()[-1] != "call_1"
    kept = rendered(MISTRAL_IDS, tokenizer, history(call(number="abc123XYZ")))
    assert kept.split()[0] == "abc123XYZ"


def test_a_template_for_tools_alone(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    named = [
        {"name": "default", "template": "plain{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools | length }}{{ messages[0].content }}"},
    ]
    trained.update_config(tmp_path, chat_template=named)
    tokenizer, template = Tokenizer.load(tmp_path), ChatTemplate.load(tmp_path)
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.decode(template.encode(tokenizer, messages)) == "plainx"
    assert tokenizer.decode(template.encode(tokenizer, messages, tools=[TOOL])) == "1x"
    assert "tools" in template.variables


def test_variables_are_those_that_the_template_reads() -> None:
    source = (
        "{% set a = b if b is defined else 1 %}{% if c is not defined %}{% set c = 2 %}{% endif %}"
        "{{ a }}{{ c }}{% for d in e %}{{ d }}{% endfor %}"
    )
    assert {"b", "c", "e"} <= ChatTemplate(source, file="x").variables
    assert "d" not in ChatTemplate(source, file="x").variables
    assert ChatTemplate(None, file="x").variables == frozenset()


def test_a_template_that_raises_for_tools_is_the_requests_error(tokenizer: Tokenizer) -> None:
    source = "{% if tools %}{{ raise_exception('no tools today') }}{% endif %}"
    with pytest.raises(RequestError, match="no tools today"):
        rendered(source, tokenizer, [{"role": "user", "content": "x"}], tools=[TOOL])
