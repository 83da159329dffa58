"""A conversation's requirements on a model's chat template."""

from datetime import datetime
from typing import Any

import pytest

from galley.errors import RequestError
from galley.text.template import ChatTemplate
from galley.tools.conversation import Conversation
from galley.tools.formats import chat_format
from galley.tools.prepare import variables_of

ASKED = [{"role": "user", "content": "x"}]
PLAIN = "{{ messages }}"
SWITCH = PLAIN + "{% if enable_thinking %}<think>{% endif %}"
GRADED = PLAIN + "{{ reasoning_effort }}"


@pytest.mark.parametrize("effort", ["low", "high", "none"])
@pytest.mark.parametrize(
    ("source", "variable"), [(PLAIN, {}), (SWITCH, "enable_thinking"), (GRADED, "reasoning_effort")]
)
def test_a_hint_of_effort_is_used_where_the_template_has_it(
    source: str, variable: Any, effort: str
) -> None:
    form = chat_format(ChatTemplate(source, file="x"))
    values = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    expected = {variable: values[variable]} if variable else {}
    hint = Conversation(messages=ASKED, effort=effort, effort_is_hint=True)
    assert variables_of(hint, form) == expected
    strict = Conversation(messages=ASKED, effort=effort)
    if variable or effort == "none":
        assert variables_of(strict, form) == expected
    else:
        with pytest.raises(RequestError, match="reasoning_effort"):
            variables_of(strict, form)


@pytest.mark.parametrize(
    ("source", "dated"),
    [
        (PLAIN, False),
        (PLAIN + "{{ strftime_now('%d %b %Y') }}", True),
        (PLAIN + "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", True),
    ],
)
def test_prompts_of_two_days_differ_where_the_template_writes_the_date(
    source: str, dated: bool
) -> None:
    form = chat_format(ChatTemplate(source, file="x"))
    first, same, next_day = (
        form.day_of(datetime(2026, 1, day, hour)) for day, hour in ((1, 0), (1, 23), (2, 0))
    )
    assert first == same
    assert (first != next_day) == dated
