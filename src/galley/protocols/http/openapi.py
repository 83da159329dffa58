"""The OpenAPI document (version 3.1), built from the routes and their request and answer types."""

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from galley import __version__
from galley.errors import GalleyError
from galley.protocols.common.errors import ErrorBody
from galley.protocols.http.errors import answer_error

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Schema: TypeAlias = dict[str, Any]
Answer: TypeAlias = Any
"""A type sent as JSON, or media type -> such a type or a schema."""

_REFERENCE: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"

_ERRORS: Final = {
    400: "Malformed, or with an unsupported value; `param` names the field",
    401: "API key missing or unknown",
    403: "Host header not allowed, or route not allowed with this key",
    404: "No such model or response",
    408: "The request was sent too slowly",
    409: "Conflicts with the current state",
    413: "The body is too large, or the recording too long",
    415: "Unsupported Content-Type or Content-Encoding",
    429: "Too many requests, in total or with this key",
    431: "The headers are too large, or too many",
    500: "Internal error",
    501: "An optional package is not installed on the server",
    503: "Unavailable: starting, draining, or out of memory",
    504: "The request's deadline has passed",
}
_EVERYWHERE: Final = frozenset({400, 401, 403, 408, 429, 431, 500, 503})
_WITH_BODY: Final = frozenset({404, 413, 415, 504})
_LATER: Final = frozenset({429, 503})
"""Statuses that are sent with ``Retry-After``."""

_RETRY_AFTER: Final = {
    "description": "Seconds to wait before a retry",
    "schema": {"type": "integer", "minimum": 0},
}

_PATH_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


class Operation(Route):
    """A route in the document, summarized by the first line of its handler's docstring."""

    error: ClassVar[type] = ErrorBody
    """Body of errors."""

    query: ClassVar[type[msgspec.Struct] | None] = None
    """Query parameters that the handler reads; every field has a default."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        tag: str,
        answers: Mapping[int, Answer],
        about: str = "",
        body: type[msgspec.Struct] | None = None,
        form: type[msgspec.Struct] | None = None,
        errors: Collection[int] = (),
    ) -> None:
        """Describe the operation's request and its answers.

        Args:
            answers: status -> body of the answer.
            errors: error statuses in addition to those that follow from what the operation reads.
            about: description of an answer with status 200.
            body: type that the handler reads as JSON.
            form: fields that the handler reads in addition to a file.
        """
        super().__init__(path, handler, methods=[method])
        self.app = _answered_by(handler)
        self.method = method
        self.tag = tag
        self.answers = answers
        self.about = about
        self.body = body
        self.form = form
        self.errors = _errors_of(self) | set(errors)

    @property
    def types(self) -> list[Any]:
        """All types that the operation's schemas are built from."""
        answered = [part for answer in self.answers.values() for part in _media(answer).values()]
        named = [kind for part in answered for kind in _kinds(part)]
        return [*named, *(part for part in (self.body, self.form, self.error) if part is not None)]


def _answered_by(handler: Handler) -> ASGIApp:
    """Return an app that sends the handler's response, or that of an expected error.

    Starlette's would do the same with more layers, through which every message of a stream passes.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await handler(request)
        except (GalleyError, HTTPException) as error:
            response = await answer_error(request, error)
            error.__traceback__ = None  # of an error that is raised again, it would grow
        await response(scope, receive, send)

    return app


def document(routes: Sequence[BaseRoute]) -> Schema:
    """Return the document of those ``routes`` that are operations, as plain JSON values."""
    operations = [route for route in routes if isinstance(route, Operation)]
    types = [kind for operation in operations for kind in operation.types]
    unique = list(dict.fromkeys(types))
    references, schemas = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    named = dict(zip(unique, references, strict=True))
    for form in dict.fromkeys(operation.form for operation in operations if operation.form):
        schema = schemas[form.__name__]
        schema["properties"]["file"] = {"type": "string", "format": "binary"}
        schema["required"] = [*schema.get("required", []), "file"]
    paths: dict[str, Schema] = {}
    for operation in operations:
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, named)
    page = {
        "openapi": "3.1.0",
        "info": {
            "title": "Galley",
            "description": "OpenAI-compatible inference. Errors have OpenAI's envelope.",
            "version": __version__,
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    # JSON Schema uses JavaScript's patterns, where $ is the very end, as \Z is in Python's.
    plain: Schema = msgspec.json.decode(msgspec.json.encode(page).replace(rb'\\Z"', b'$"'))
    return plain


def _described(operation: Operation, named: Mapping[Any, Schema]) -> Schema:
    def content(media: Mapping[str, Any]) -> Schema:
        return {kind: {"schema": _schema(part, named)} for kind, part in media.items()}

    responses: Schema = {
        str(status): {"description": operation.about or "OK", "content": content(_media(answer))}
        for status, answer in operation.answers.items()
    }
    for status in sorted(operation.errors - operation.answers.keys()):
        error = responses[str(status)] = {
            "description": _ERRORS[status],
            "content": content({_JSON: operation.error}),
        }
        if status in _LATER:
            error["headers"] = {"Retry-After": _RETRY_AFTER}
    described: Schema = {
        "tags": [operation.tag],
        "summary": (inspect.getdoc(operation.endpoint) or "").partition("\n")[0],
        "operationId": operation.name,
        "responses": responses,
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": content({_JSON: operation.body})}
    if operation.form is not None:
        form = content({"multipart/form-data": operation.form})
        described["requestBody"] = {"required": True, "content": form}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(operation.path)
    ]
    if operation.query is not None:
        _, schemas = msgspec.json.schema_components([operation.query])
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in schemas[operation.query.__name__]["properties"].items()
        ]
    return {**described, "parameters": parameters} if parameters else described


def _errors_of(operation: Operation) -> set[int]:
    """Return the error statuses that follow from what an operation reads."""
    errors = set(_EVERYWHERE)
    if operation.body is not None or operation.form is not None:
        errors |= _WITH_BODY
    if operation.form is not None:
        errors.add(501)
    if _PATH_PARAMETER.search(operation.path):
        errors.add(404)
    return errors


def _media(answer: Answer) -> Mapping[str, Any]:
    return answer if isinstance(answer, dict) else {_JSON: answer}


def _kinds(part: Any) -> tuple[Any, ...]:
    """Return the one or several types of an answer; none if it is a schema already."""
    if isinstance(part, dict):
        return ()
    return part if isinstance(part, tuple) else (part,)


def _schema(part: Any, named: Mapping[Any, Schema]) -> Schema:
    if isinstance(part, dict):
        return part
    schemas = [named[kind] for kind in _kinds(part)]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
