"""Answers from each format's published template and its peers' tests, with their parsed content."""

# ruff: noqa: RUF001 - DeepSeek's tokens are spelled with these characters

from typing import Any, NamedTuple

from tests.tools.answers import Call


class Example(NamedTuple):
    """An answer, and its text, calls and thinking."""

    format: str
    answer: str
    calls: list[Call]
    text: str = ""
    reasoning: str = ""
    thinking: str | None = None


PARIS: Call = ("get_weather", {"city": "Paris"})
ROME: Call = ("get_weather", {"city": "Rome", "days": 3, "units": "celsius"})
NOW: Call = ("get_time", {})
ODD: dict[str, Any] = {"city": 'a "b" \\ </tool_call> {[\n] é 😀', "places": ["x", "[TOOL_CALLS]"]}

EXAMPLES = [
    Example(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [PARIS],
    ),
    Example(
        "hermes",
        'I look it up.\n\n<tool_call>\n{"arguments": {"city": "Rome", "days": 3, "units": "celsius"}, '
        '"name": "get_weather"}\n</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n'
        "</tool_call>\n",
        [ROME, NOW],
        text="I look it up.",
    ),
    Example(
        "hermes",
        "<think>\nThe user asks for <b>weather</b>.\n</think>\n\n<tool_call>\n"
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}\n</tool_call>',
        [PARIS],
        reasoning="The user asks for <b>weather</b>.",
        thinking="think",
    ),
    Example(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": '
        '"a \\"b\\" \\\\ </tool_call> {[\\n] é \\ud83d\\ude00", "places": ["x", "[TOOL_CALLS]"]}}'
        "</tool_call>",
        [("get_weather", ODD)],
    ),
    Example("llama", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    Example(
        "llama",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Rome", '
        '"days": 3, "units": "celsius"}}; {"name": "get_time", "parameters": {}}',
        [ROME, NOW],
    ),
    Example(
        "llama", '{"temperature": 21, "name": "Paris"}', [], '{"temperature": 21, "name": "Paris"}'
    ),
    Example("llama", '{"name": "Paris"}', [], '{"name": "Paris"}'),
    Example("pythonic", "[get_weather(city='Paris'), get_time()]", [PARIS, NOW]),
    Example(
        "pythonic",
        '<|python_start|>[get_weather(city="Rome", days=3, units="celsius",)]<|python_end|>',
        [ROME],
    ),
    Example(
        "pythonic",
        r'[get_weather(city="a \"b\" \\ </tool_call> {[\n] é 😀", places=["x", "[TOOL_CALLS]"])]',
        [("get_weather", ODD)],
    ),
    Example("pythonic", "[1, 2, get_time()]", [], "[1, 2, get_time()]"),
    Example(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", '
        '"arguments": {}, "id": "abcdefghi"}]',
        [PARIS, NOW],
    ),
    Example(
        "mistral",
        '[THINK]Which city?[/THINK]One moment.[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 3, '
        '"units": "celsius"}[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}',
        [ROME, NOW],
        "One moment.",
        "Which city?",
        "mistral",
    ),
    Example("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
    Example(
        "deepseek",
        "<think>\nParis it is.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
        "<｜tool▁sep｜>"
        'get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        "<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, NOW],
        reasoning="Paris it is.",
        thinking="think",
    ),
    Example(
        "deepseek",
        "See:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Rome", "days": 3, "units": "celsius"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time'
        "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [ROME, NOW],
        "See:",
    ),
    Example(
        "qwen_xml",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=units>\ncelsius\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=get_time>\n</function>\n</tool_call>",
        [ROME, NOW],
    ),
    Example(
        "qwen_xml",
        "Now.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        'a "b" \\ </tool_call> {[\n] é 😀\n</parameter>\n<parameter=places>\n["x", "[TOOL_CALLS]"]\n'
        "</parameter>\n</function>\n</tool_call>",
        [("get_weather", ODD)],
        "Now.",
    ),
    Example(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time"}]',
        [PARIS, NOW],
    ),
    Example(
        "granite",
        "Here is my thought process: a city. Here is my response: Yes. "
        '<tool_call>[{"name": "get_time", "arguments": {}}]',
        [NOW],
        "Yes.",
        "a city.",
        "granite",
    ),
    Example(
        "phi",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>',
        [PARIS],
    ),
    Example(
        "phi",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time"}]',
        [PARIS, NOW],
    ),
    Example(
        "harmony",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [PARIS],
        reasoning="Need the weather.",
    ),
    Example(
        "harmony",
        "<|channel|>commentary<|message|>I look twice.<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary <|constrain|>json<|message|>{"city": "Rome", "days": 3, "units": "celsius"}'
        "<|call|><|start|>assistant<|channel|>commentary to=functions.get_time<|message|>{}",
        [ROME, NOW],
        "I look twice.",
    ),
    Example(
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>"
        "It is **warm**.\n",
        [],
        "It is **warm**.\n",
        "Easy.",
    ),
]
