"""How calls are written, as data: a grammar is made of it, where calls must come or must be valid."""

from typing import Final, Literal, NamedTuple

NAME: Final = "{name}"
ARGUMENTS: Final = "{arguments}"


class CallSyntax(NamedTuple):
    """The texts of calls. A text that is a special token's stands for that token.

    Attributes:
        call: the parts of a call; :data:`NAME` and :data:`ARGUMENTS` stand for these.
        begin, between, end: what stands before all calls, between two, and behind the last.
        arguments: how they are written: as a JSON object, as Qwen3-Coder's parameters, or as Python's
            keyword arguments.
        several: more than one call may come.
        marked: calls begin with a text that nothing else begins with.
    """

    call: tuple[str, ...]
    begin: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    arguments: Literal["json", "tags", "python"] = "json"
    several: bool = True
    marked: bool = True
