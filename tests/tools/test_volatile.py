"""Lines that change with every request, and the part of a prompt shared in spite of them."""

from typing import Any

import pytest

from galley.settings.engine import VolatileLines
from galley.tools.volatile import settle

HEAD = "x-anthropic-billing-header: cc_version=2.1.9; cch=1a2b;"
RULES = "You write code.\n\nBe brief."
USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "Hi."}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize("prompt", [f"{HEAD}\n\n{RULES}", f"{HEAD}\n{RULES}", f"{RULES}\n{HEAD}"])
@pytest.mark.parametrize("rest", [[USER], [USER, SAID, USER], [USER, SAID]])
def test_a_volatile_line_goes_where_the_setting_says(prompt: str, rest: list[Any]) -> None:
    given = [system(prompt), *rest]
    assert settle(given, "keep") == given
    assert settle(given, "drop") == [system(RULES), *rest]
    moved = settle(given, "move")
    assert [m for m in moved if m != system(HEAD)] == [system(RULES), *rest]
    # The message that the answer continues stays last.
    assert moved.index(system(HEAD)) == len(rest) + (rest[-1] == USER)


@pytest.mark.parametrize("how", ["move", "drop"])
@pytest.mark.parametrize(
    "given",
    [
        [system(RULES), USER],
        [USER],
        [USER, system(HEAD)],
        [system(f"Never write {HEAD} yourself."), USER],
        [],
    ],
)
def test_nothing_else_is_touched(given: list[Any], how: VolatileLines) -> None:
    assert settle(given, how) == given


def test_a_prompt_of_nothing_else_is_none() -> None:
    assert settle([system(HEAD), USER], "drop") == [USER]
