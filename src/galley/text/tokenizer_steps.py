"""What the steps of a ``tokenizer.json`` may do to a text: whether it streams, and what it may take."""

import math
import re
from typing import Any, Final, NamedTuple, Self

import msgspec

_MOST_GROWTH: Final = 4.0
"""Characters that a decoder may make of one."""

_STREAMABLE: Final = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
"""Steps of a decoder whose result for a token does not depend on later tokens."""

_PLAIN: Final = frozenset(
    (
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer"),
        *(
            "ByteLevel",
            "Whitespace",
            "WhitespaceSplit",
            "BertPreTokenizer",
            "Digits",
            "Punctuation",
        ),
    )
)
"""Steps of encoding that are programs of the library's alone: linear, and a text hardly grows."""

_PARTS: Final = re.compile(r"\\p\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Of a regular expression: a property, an escape, a class of characters, or any other character."""

_MOST_OPTIONAL: Final = 4


class _Step(msgspec.Struct):
    type: str
    decoders: list["_Step"] = []
    normalizers: list["_Step"] = []
    pretokenizers: list["_Step"] = []
    stop: int = 0  # Strip: characters taken off the end
    pattern: Any = None  # Replace, Split
    content: Any = None  # Replace

    def flat(self) -> list["_Step"]:
        if self.type != "Sequence":
            return [self]
        inner = (*self.decoders, *self.normalizers, *self.pretokenizers)
        return [step for one in inner for step in one.flat()]

    @property
    def is_plain(self) -> bool:
        """Whether a step of encoding takes little time and memory for a short text, whatever that is."""
        if self.type != "Split":
            return self.type in _PLAIN
        expression = self.pattern.get("Regex") if isinstance(self.pattern, dict) else None
        return not isinstance(expression, str) or is_simple(expression)

    @property
    def growth(self) -> float:
        """Characters that a decoder's step makes of one, at most; infinite where that is not known."""
        if self.type != "Replace":
            return 1.0
        literal = self.pattern.get("String") if isinstance(self.pattern, dict) else None
        if not (isinstance(literal, str) and literal and isinstance(self.content, str)):
            return math.inf
        return max(1.0, len(self.content) / len(literal))


class _File(msgspec.Struct):
    decoder: _Step | None = None
    normalizer: _Step | None = None
    pre_tokenizer: _Step | None = None


class Steps(NamedTuple):
    """The steps of one tokenizer.

    Attributes:
        decoder: their kinds, in order.
        not_streamable: why text that is being written cannot be streamed; empty if it can.
        own: kinds of steps of the normaliser and pre-tokeniser that the checkpoint has programmed, by
            replacements and regular expressions: they may take any time and memory for a short text.
    """

    decoder: list[str]
    not_streamable: str = ""
    own: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The steps in the bytes of a ``tokenizer.json``. Raises msgspec.MsgspecError if there are none."""
        file = msgspec.json.decode(data, type=_File)
        decoder, before = _flat(file.decoder), _flat(file.normalizer) + _flat(file.pre_tokenizer)
        return cls(
            [step.type for step in decoder],
            _why_not(decoder),
            tuple(step.type for step in before if not step.is_plain),
        )


def is_simple(expression: str) -> bool:
    """Whether a search for the expression cannot take long.

    No alternative of it repeats two parts, or a group, or has more than a few that may be absent. Others
    may take a time that grows exponentially, or by a high power, with the length of the text.
    """
    repeated = optional = depth = 0
    before = ""
    for part in _PARTS.findall(expression):
        if part == "|" and not depth:
            repeated = optional = 0
        depth += (part == "(") - (part == ")")
        repeated += part in "*+{"
        optional += part == "?" and before != "("
        group = before == ")" and part in "*+{"
        again = (
            part[0] == "\\" and part[1] in "gk123456789"
        )  # recursion, and what a group has matched
        if group or again or repeated > 1 or optional > _MOST_OPTIONAL:
            return False
        before = part
    return True


def _flat(step: _Step | None) -> list[_Step]:
    return [] if step is None else step.flat()


def _why_not(decoder: list[_Step]) -> str:
    """Why a decoder's text cannot be streamed, or is not bounded by the number of tokens; else empty."""
    names = [step.type for step in decoder]
    if names == ["ByteLevel"]:
        return ""
    if not names or any(step.type not in _STREAMABLE or step.stop for step in decoder):
        return (
            f"the decoder {' + '.join(names) or 'null'} is not supported; Galley streams ByteLevel, or a "
            f"sequence of {', '.join(sorted(_STREAMABLE))}"
        )
    if math.prod(step.growth for step in decoder) > _MOST_GROWTH:
        return (
            f"the decoder may make more than {_MOST_GROWTH:g} characters of one; Galley streams those that "
            "replace a text by one of about its length"
        )
    return ""
