"""Complete generated answers."""

from contextlib import aclosing

from galley.gateway.generation import Finish, Generation
from galley.tools.events import Answer, Event, whole


async def whole_answer(generation: Generation) -> tuple[Answer, Finish | None]:
    """Return the only choice of ``generation`` when complete, and its finish reason.

    Raises:
        EngineError: the engine failed.
        Draining: the server is shutting down.
    """
    events: list[Event] = []
    finish: Finish | None = None
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            events += piece.events
            finish = piece.finish or finish
    return whole(events), finish
