"""A conversation's requirements on a model's chat template."""

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
