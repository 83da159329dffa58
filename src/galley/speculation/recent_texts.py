"""Suffix lookup over recently served texts of the same tenant: what followed the last tokens there."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from galley.speculation.proposer import NO_PROPOSAL, Follower, Forced, Proposal, common_suffix

LENGTHS: Final = (12, 4)
"""Lengths of the n-grams that are looked up, the longest first."""

KEPT_TOKENS: Final = 1 << 15
"""Tokens of all texts together, at some 350 bytes per token. The oldest texts are dropped first."""


class _Text(NamedTuple):
    salt: bytes
    tokens: Sequence[int]


class RecentTexts:
    """Looks up recent texts: see :class:`galley.speculation.proposer.Proposer`.

    A text is a request's output with the end of its prompt. A separate index for each salt maps a hash of
    each n-gram to the latest position after it, so tenants never see each other's texts. An engine has
    one model, so all its texts are from that model.
    """

    name = "recent"

    def __init__(self, kept_tokens: int = KEPT_TOKENS) -> None:
        self._most = kept_tokens
        self._texts: deque[_Text] = deque()
        self._unread: deque[_Text] = deque()  # the latest ones, until the next lookup
        self._places: dict[bytes, dict[int, tuple[_Text, int]]] = {}
        self.tokens = 0
        """Number of tokens of all texts that are kept."""

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Return a follower of all texts with the salt, current and future."""
        return _Follower(self, salt)

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Keep the generated tokens, and as much of the prompt as is needed to match their beginning."""
        if len(tokens) == prompt:
            return
        begin = max(0, prompt - LENGTHS[0], len(tokens) - self._most)
        text = _Text(salt, tokens[begin:])
        self._texts.append(text)
        self._unread.append(text)
        self.tokens += len(text.tokens)
        while self.tokens > self._most:
            self._forget(self._texts.popleft())

    def find(self, salt: bytes, tokens: Sequence[int], most: int) -> Proposal:
        """Return the tokens that most recently followed the end of ``tokens``."""
        while self._unread:
            self._enter(self._unread.popleft())
        places = self._places.get(salt)
        if places is None:
            return NO_PROPOSAL
        for length in LENGTHS:
            found = places.get(hash(tuple(tokens[-length:])))
            if found is None:
                continue
            (_, source), place = found
            match = common_suffix(source, place, tokens)
            if match >= length:
                return Proposal(source[place : place + most], match)
        return NO_PROPOSAL

    def _enter(self, text: _Text) -> None:
        if entries := _entries(text.tokens):
            places = self._places.setdefault(text.salt, {})
            places.update((key, (text, place)) for key, place in entries)

    def _forget(self, text: _Text) -> None:
        self.tokens -= len(text.tokens)
        if self._unread and self._unread[0] is text:
            self._unread.popleft()
            return
        places = self._places.get(text.salt, {})
        for key, _ in _entries(text.tokens):
            if key in places and places[key][0] is text:
                del places[key]
        if not places:
            self._places.pop(text.salt, None)


class _Follower:
    def __init__(self, texts: RecentTexts, salt: bytes) -> None:
        self._texts = texts
        self._salt = salt

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """Return the tokens after a match: see :meth:`galley.speculation.proposer.Follower.propose`."""
        return self._texts.find(self._salt, tokens, most)


def _entries(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Return (hash of an n-gram, the position after it) for all of the text except its end."""
    return [
        (hash(tuple(tokens[place - length : place])), place)
        for length in LENGTHS
        for place in range(length, len(tokens))
    ]
