"""Tools of the Responses API: functions, also in namespaces, and web search, which is not run."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import MAX_TOOL_BYTES, MAX_TOOLS, TOOL_NAME_PATTERN, Strict
from galley.tools.conversation import TOOL_NAME, Tool

ToolName: TypeAlias = Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]


class ResponseFunction(Strict, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Annotated[
        bool | None, Meta(description="Accepted and ignored: all functions are in the prompt.")
    ] = None

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self))
        if size > MAX_TOOL_BYTES:
            raise RequestError(
                f"parameters: the tool's JSON has {size} bytes, at most {MAX_TOOL_BYTES}",
                param="parameters",
            )


class ResponseNamespace(Strict, frozen=True, kw_only=True, tag_field="type", tag="namespace"):
    """Functions that share a name prefix; the model calls them `namespace.name`."""

    name: ToolName
    tools: Annotated[list[ResponseFunction], Meta(max_length=MAX_TOOLS)]
    description: Annotated[str | None, Meta(description="Accepted and ignored.")] = None


class ResponseSearch(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="web_search",
    omit_defaults=True,
):
    """Web search, which agents send with every request; accepted, but hidden from the model."""

    external_web_access: bool | None = None
    search_context_size: str | None = None
    filters: dict[str, Any] | None = None
    user_location: dict[str, Any] | None = None


ResponseTool: TypeAlias = ResponseFunction | ResponseNamespace | ResponseSearch


class Offered(NamedTuple):
    """A function by its names for clients and for the model."""

    namespace: str | None
    function: ResponseFunction
    field: str

    @property
    def name(self) -> str:
        """The name by which the model calls the function."""
        return full_name(self.namespace, self.function.name)


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function."""
    return name if namespace is None else f"{namespace}.{name}"


def offered(tools: Sequence[ResponseTool] | None) -> Iterator[Offered]:
    """Yield all functions.

    Raises:
        RequestError: a name is too long with its namespace.
    """
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, ResponseFunction):
            yield Offered(None, tool, f"tools[{index}]")
        elif isinstance(tool, ResponseNamespace):
            for place, function in enumerate(tool.tools):
                one = Offered(tool.name, function, f"tools[{index}].tools[{place}]")
                if not TOOL_NAME.fullmatch(one.name):
                    raise RequestError(
                        f"{one.field}.name: {one.name[:64]!r}... is too long for a tool's name",
                        param=f"{one.field}.name",
                    )
                yield one


def model_tools(tools: Sequence[ResponseTool] | None) -> tuple[Tool, ...]:
    """Return the functions in the form for the model. Raises as :func:`offered`."""
    return tuple(
        Tool(
            name=one.name,
            description=one.function.description,
            parameters=one.function.parameters,
            strict=bool(one.function.strict),
            field=f"{one.field}.parameters",
        )
        for one in offered(tools)
    )
