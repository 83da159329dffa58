"""Connections that take turns at the event loop."""

import asyncio
from typing import Protocol


class Turn(Protocol):
    """Something that needs a little of the loop's time."""

    def take_turn(self) -> None:
        """Do a short piece of work, and request another turn if there is more to do."""


class Turns:
    """Gives one turn in each round of the loop, however many wait, and leaves the rest to other tasks."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._waiting: dict[Turn, None] = {}
        self._coming = False

    def ask(self, turn: Turn) -> None:
        """Call ``turn.take_turn`` after the turns that were requested before."""
        self._waiting[turn] = None
        self._come()

    def leave(self, turn: Turn) -> None:
        """Withdraw ``turn``."""
        self._waiting.pop(turn, None)

    def _next(self) -> None:
        self._coming = False
        if self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            self._come()
            first.take_turn()

    def _come(self) -> None:
        if self._waiting and not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._next)
