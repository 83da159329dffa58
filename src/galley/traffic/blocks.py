"""Hashes of a prompt's blocks, and which requests are turns of one session.

Hashes are keyed with random bytes that are never written down, so nobody can find out whether a record has
a text that they guess. Numbers of different runs of a server have nothing in common.
"""

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from galley.traffic.trace import BLOCK_TOKENS

_HASH_BYTES: Final = 6
"""Small enough for a JSON number that every reader holds exactly."""
_MOST_PROMPTS: Final = 10_000
"""Recent prompts among which a session's turn before is looked for."""
_LONGEST_CHAIN: Final = 16
"""Prompts with the same full blocks that are compared."""


class Hashed(NamedTuple):
    """A prompt's blocks, and the session that it continues or begins."""

    blocks: list[int]
    session: str


class _Prompt(NamedTuple):
    tokens: int
    digest: bytes
    session: str


class Hasher:
    """Hashes the prompts of one run of a server. For use in one thread."""

    def __init__(self) -> None:
        """Begin with no prompts, and a new key."""
        self._key = secrets.token_bytes(32)
        self._sessions = 0
        # The hash of a prompt's last full block -> the prompts that end within the block after it.
        self._recent: OrderedDict[int, list[_Prompt]] = OrderedDict()

    def pseudonym(self, name: str) -> str:
        """Return a name that stands for another in this run."""
        return f"t-{self._digest(name.encode())[:4].hex()}" if name else ""

    def prompt(self, tokens: Sequence[int], scope: str) -> Hashed:
        """Hash a prompt.

        A prompt that begins with the whole of an earlier one continues its session.

        Args:
            tokens: token ids, at least one.
            scope: prompts of different scopes share nothing: those of other tenants or models.
        """
        data = array("q", tokens).tobytes()
        blocks: list[int] = []
        chain = self._digest(scope.encode())
        full = [int.from_bytes(chain[:_HASH_BYTES], "big")]
        session = None
        for begin in range(0, len(tokens), BLOCK_TOKENS):
            part = data[8 * begin : 8 * (begin + BLOCK_TOKENS)]
            # An earlier prompt may end within this block.
            session = self._continued(full[-1], data, len(tokens)) or session
            chain = self._digest(chain + part)
            blocks.append(int.from_bytes(chain[:_HASH_BYTES], "big"))
            if len(part) == 8 * BLOCK_TOKENS:
                full.append(blocks[-1])
        if len(tokens) % BLOCK_TOKENS == 0:
            session = self._continued(full[-1], data, len(tokens)) or session
        if session is None:
            self._sessions += 1
            session = f"s{self._sessions}"
        self._remember(full[-1], _Prompt(len(tokens), self._digest(data), session))
        return Hashed(blocks, session)

    def _continued(self, block: int, data: bytes, tokens: int) -> str | None:
        """Return the session of an earlier prompt that ends after ``block`` and begins ``data``."""
        for earlier in reversed(self._recent.get(block, ())):
            if earlier.tokens < tokens and earlier.digest == self._digest(
                data[: 8 * earlier.tokens]
            ):
                return earlier.session
        return None

    def _remember(self, block: int, prompt: _Prompt) -> None:
        prompts = self._recent.setdefault(block, [])
        self._recent.move_to_end(block)
        prompts.append(prompt)
        del prompts[:-_LONGEST_CHAIN]
        if len(self._recent) > _MOST_PROMPTS:
            self._recent.popitem(last=False)

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, key=self._key, digest_size=16).digest()
