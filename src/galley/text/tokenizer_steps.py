"""Analysis of the steps of a ``tokenizer.json``: whether text streams, and the cost of encoding."""

import math
import re
from typing import Any, Final, NamedTuple, Self

import msgspec

_MOST_GROWTH: Final = 4.0
"""Maximum growth of a text in a decoder: characters for each one."""

_STREAMABLE: Final = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
"""Decoder steps whose result for a token does not depend on later tokens."""

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
"""Encoding steps implemented in the library: they take linear time, and a text hardly grows."""

_PARTS: Final = re.compile(r"\\p\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Parts of a regular expression: a property, an escape, a character class, or any other character."""

_MOST_OPTIONAL: Final = 4


class _Step(msgspec.Struct):
    type: str
    decoders: list["_Step"] = []
    normalizers: list["_Step"] = []
    pretokenizers: list["_Step"] = []
    stop: int = 0  # Strip: characters removed from the end
    pattern: Any = None  # Replace, Split
    content: Any = None  # Replace

    def flat(self) -> list["_Step"]:
        if self.type != "Sequence":
            return [self]
        inner = (*self.decoders, *self.normalizers, *self.pretokenizers)
        return [step for one in inner for step in one.flat()]

    @property
    def is_plain(self) -> bool:
        """Whether an encoding step takes little time and memory for any short text."""
        if self.type != "Split":
            return self.type in _PLAIN
        expression = self.pattern.get("Regex") if isinstance(self.pattern, dict) else None
        return not isinstance(expression, str) or is_simple(expression)

    @property
    def growth(self) -> float:
        """Maximum number of characters that a decoder step makes of one; infinite if unknown."""
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
        decoder: types of the decoder's steps, in order.
        not_streamable: why generated text cannot be streamed; empty if it can.
        own: types of normalizer and pre-tokenizer steps that the checkpoint defines by replacements
            and regular expressions: the time and memory they take for a short text are not bounded.
    """

    decoder: list[str]
    not_streamable: str = ""
    own: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read the steps in the bytes of a ``tokenizer.json``.

        Raises:
            msgspec.MsgspecError: the bytes contain none.
        """
        file = msgspec.json.decode(data, type=_File)
        decoder, before = _flat(file.decoder), _flat(file.normalizer) + _flat(file.pre_tokenizer)
        return cls(
            [step.type for step in decoder],
            _why_not(decoder),
            tuple(step.type for step in before if not step.is_plain),
        )


def is_simple(expression: str) -> bool:
    """Return whether a search for the expression is certain to be fast.

    In such an expression, no alternative repeats two parts, or a group, or has more than a few
    optional parts. The time of others may grow exponentially, or by a high power, with the length
    of the text.
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
        )  # recursion, or a back-reference to a group's match
        if group or again or repeated > 1 or optional > _MOST_OPTIONAL:
            return False
        before = part
    return True


def _flat(step: _Step | None) -> list[_Step]:
    return [] if step is None else step.flat()


def _why_not(decoder: list[_Step]) -> str:
    """Return why a decoder's text cannot be streamed, or may grow too much; empty if it can be."""
    names = [step.type for step in decoder]
    if names == ["ByteLevel"]:
        return ""
    if not names or any(step.type not in _STREAMABLE or step.stop for step in decoder):
        return (
            f"the decoder {' + '.join(names) or 'null'} is not supported for streaming; supported are "
            f"ByteLevel, or a sequence of {', '.join(sorted(_STREAMABLE))}"
        )
    if math.prod(step.growth for step in decoder) > _MOST_GROWTH:
        return (
            f"the decoder can produce more than {_MOST_GROWTH:g} characters for one, which is not "
            "supported for streaming"
        )
    return ""
