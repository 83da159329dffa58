"""Steps that every request to a model goes through before it is answered."""

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
        """Name of the model; None for the only one served."""


Schema = TypeVar("Schema")
Named = TypeVar("Named", bound=Body)


class Admitted(NamedTuple, Generic[Named]):
    """A parsed request, its caller, and the model that may answer it."""

    parsed: Named
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
        models: the served models.
        request: none of its body may have been read yet.
        schema: the type that its body must parse as.
        task: the task that the model must support.
        prompt: returns the part of the body to log where prompts are logged.

    Raises:
        GalleyError: the body does not match ``schema``, no such model can answer now, or the client
            hung up. Checks that do not depend on the body run before it is read.
    """
    parsed, caller = await read(models, request, schema, task, prompt=prompt)
    return Admitted(parsed, caller, await find(models, request, parsed, task, caller))


async def read(
    models: Registry,
    request: Request,
    schema: type[Schema],
    task: Task | None,
    *,
    prompt: Callable[[Schema], object],
) -> tuple[Schema, Caller]:
    """Read and check a request: the first half of :func:`admit`.

    Called directly for bodies from which the model takes more work to find.
    """
    settings = models.settings
    caller = caller_of(request, timeout=settings.request_timeout)
    models.expect(task, caller)
    parsed = await body.read(request, schema, max_bytes=settings.max_body_bytes)
    note_prompt(caller, prompt(parsed), settings)
    # "streamed": Ollama streams unless the request says otherwise.
    caller.streams = bool(getattr(parsed, "streamed", getattr(parsed, "stream", False)))
    return parsed, caller


async def find(
    models: Registry, request: Request, parsed: Body, task: Task | None, caller: Caller
) -> ServedModel:
    """Return the model that the body names, loaded if needed: the second half of :func:`admit`."""
    priority: int = getattr(parsed, "priority", None) or 0
    found = models.find(parsed.model, task, caller, priority=priority)
    return await while_connected(request.receive, found)


async def admit_unqueued(
    models: Registry, request: Request, schema: type[Named], task: Task | None = None
) -> Admitted[Named]:
    """Admit work that does not use the engine, such as counting tokens: no limits apply to it."""
    caller = caller_of(request)
    models.expect(task)
    parsed = await body.read(request, schema, max_bytes=models.settings.max_body_bytes)
    served = await while_connected(request.receive, models.find(parsed.model, task))
    return Admitted(parsed, caller, served)
