"""What every request to a model goes through before it is answered."""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from starlette.requests import Request

from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
from galley.protocols.http.sse import while_connected
from galley.types import Task


class Body(Protocol):
    """A request's body that names a model; it may have a field ``priority``."""

    @property
    def model(self) -> str | None:
        """The model's name; None for the only one."""


Schema = TypeVar("Schema")
Named = TypeVar("Named", bound=Body)


class Admitted(NamedTuple, Generic[Named]):
    """A request that its model may answer."""

    asked: Named
    caller: Caller
    served: ServedModel


async def admit(
    models: Registry,
    request: Request,
    schema: type[Named],
    task: Task,
    *,
    prompt: Callable[[Named], object],
) -> Admitted[Named]:
    """Read a request and find the model that it names.

    Args:
        models: those that are served.
        request: nothing of its body has been read.
        schema: what its body must be.
        task: what the model must do.
        prompt: the part of the body that is logged where prompts are.

    Raises:
        GalleyError: the body is not of ``schema``, no such model can answer now, or the client hung up.
            What does not depend on the body is refused before it is read.
    """
    asked, caller = await read(models, request, schema, task, prompt=prompt)
    return Admitted(asked, caller, await find(models, request, asked, task, caller))


async def read(
    models: Registry,
    request: Request,
    schema: type[Schema],
    task: Task | None,
    *,
    prompt: Callable[[Schema], object],
) -> tuple[Schema, Caller]:
    """The first half of :func:`admit`, for bodies whose model takes more to find."""
    settings = models.settings
    caller = caller_of(request, timeout=settings.request_timeout)
    models.expect(task, caller)
    asked = await body.read(request, schema, max_bytes=settings.max_body_bytes)
    note_prompt(caller, prompt(asked), settings)
    return asked, caller


async def find(
    models: Registry, request: Request, asked: Body, task: Task | None, caller: Caller
) -> ServedModel:
    """The second half of :func:`admit`: the model that the body names, loaded if it was not."""
    priority: int = getattr(asked, "priority", None) or 0
    found = models.find(asked.model, task, caller, priority=priority)
    return await while_connected(request.receive, found)


async def admit_unqueued(
    models: Registry, request: Request, schema: type[Named], task: Task | None = None
) -> Admitted[Named]:
    """:func:`admit` for work that is not the engine's, like counting tokens: no limits apply to it."""
    caller = caller_of(request)
    models.expect(task)
    asked = await body.read(request, schema, max_bytes=models.settings.max_body_bytes)
    served = await while_connected(request.receive, models.find(asked.model, task))
    return Admitted(asked, caller, served)
