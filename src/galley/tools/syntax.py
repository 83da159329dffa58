"""How calls are written, as data, from which a grammar is made where calls must come or be valid."""

from typing import Final, Literal, NamedTuple

NAME: Final = "{name}"
ARGUMENTS: Final = "{arguments}"


class CallSyntax(NamedTuple):
    """The texts of calls. A text that is that of a special token stands for the token.

    Attributes:
        call: the parts of a call; :data:`NAME` and :data:`ARGUMENTS` are placeholders.
        begin, between, end: texts before all calls, between two, and after the last.
        arguments: how they are written: as a JSON object, as Qwen3-Coder's parameters, or as
            Python's keyword arguments.
        several: whether an answer may have more than one call.
        marked: whether calls begin with a text that begins nothing else.
    """

    call: tuple[str, ...]
    begin: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    arguments: Literal["json", "tags", "python"] = "json"
    several: bool = True
    marked: bool = True
