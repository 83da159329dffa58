"""Conversion of GBNF, llama.cpp's notation, to Lark, including what llguidance's converter omits."""

import re
from typing import Final

from llguidance import gbnf_to_lark

_TOKEN: Final = re.compile(
    r"""(?P<other>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\#[^\n]*)"""
    r"""|(?P<negated>!?)<(?P<name>\[[0-9]{1,9}\]|[^<>\s"\[\]]{1,64})>"""
)
"""A string, a character class or a comment, none of which contains tokens; otherwise a token."""

_MARK: Final = "galley-token-"


def to_lark(source: str) -> str:
    """Convert a GBNF grammar to Lark's notation.

    Tokens (``<[10]>``, ``<think>``, and ``!<[10]>`` for any other) are replaced by rules during conversion.

    Raises:
        Exception: of any type: the text is not valid GBNF.
    """
    tokens: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        if match["other"] is not None:
            return match[0]
        name = match["name"]
        if match["negated"]:
            if not name.startswith("["):
                raise ValueError(f"{match[0]}: give the token's id, as in !<[10]>")
            name = f"[^{name[1:]}"
        word = f"{_MARK}{len(tokens)}"
        tokens[word] = f"<{name}>"
        return f" {word} "

    parser = _Parser(tokens)
    rules = parser.parse(_TOKEN.sub(mark, source))
    gbnf_to_lark.resolve(rules)
    ordered = sorted(rules.values(), key=lambda rule: rule.order)
    return "%llguidance {}\n\n" + "\n".join(map(str, ordered)) + "\n"


class _Token(gbnf_to_lark.ASTNode):
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def is_terminal(self) -> bool:
        """Return whether it may be part of an expression of bytes."""
        return False


class _Repetition(gbnf_to_lark.RepetitionNode):
    """A repetition, which Lark requires in parentheses where it is repeated again."""

    def is_atomic(self) -> bool:
        """Return whether it can be repeated without parentheses."""
        return False


class _Parser(gbnf_to_lark.GrammarParser):
    def __init__(self, tokens: dict[str, str]) -> None:
        """Create a parser; ``tokens`` maps the words that stand for tokens to the tokens."""
        super().__init__()
        self._tokens = tokens

    def _parse_repetition(
        self, pos: gbnf_to_lark.Position, nodes: list[gbnf_to_lark.ASTNode]
    ) -> gbnf_to_lark.Position:
        word = nodes[-1].name if nodes and isinstance(nodes[-1], gbnf_to_lark.RuleRefNode) else ""
        if word in self._tokens:
            nodes[-1] = _Token(self._tokens[word])
        after = super()._parse_repetition(pos, nodes)
        last = nodes[-1] if nodes else None
        if isinstance(last, gbnf_to_lark.RepetitionNode):
            nodes[-1] = _Repetition(last.node, last.min_times, last.max_times)
        return after
