"""Ollama's ``/api/create`` and ``/api/copy``: more names of models, until the server ends."""

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.gateway.derived import Derived
from galley.gateway.registry import Registry
from galley.protocols.common.messages import Strict
from galley.protocols.ollama.answers import named_as_given
from galley.protocols.ollama.options import Options, known_options, option_warnings
from galley.protocols.ollama.pull import OllamaProgress

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}(:[A-Za-z0-9_.-]{1,64})?\Z"

MAX_SYSTEM: Final = 64 * 1024
"""Maximum length of a system prompt, which is kept in memory."""

_LATEST: Final = ":latest"

Empty = Annotated[
    Annotated[dict[str, Any], Meta(max_length=0)] | None, Meta(description="Not supported.")
]


class OllamaCreateRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/create`: the contents of a Modelfile, as Ollama's clients send them."""

    model: Annotated[str, Meta(pattern=NAME_PATTERN)] | None = None
    name: Annotated[
        Annotated[str, Meta(pattern=NAME_PATTERN)] | None,
        Meta(description="Older name of `model`."),
    ] = None
    base: Annotated[
        str | None, Meta(description="A served model, or MODEL:ADAPTER for a LoRA adapter of one.")
    ] = msgspec.field(default=None, name="from")
    system: Annotated[
        Annotated[str, Meta(max_length=MAX_SYSTEM)] | None,
        Meta(description="System message of conversations that have none."),
    ] = None
    parameters: Options = None
    license: Annotated[str | list[str] | None, Meta(description="Accepted and ignored.")] = None
    stream: Annotated[bool | None, Meta(description="Default: true.")] = None
    template: Annotated[
        Literal[""] | None,
        Meta(description="Not supported: chat templates are Jinja, and the checkpoint's."),
    ] = None
    adapters: Annotated[
        Annotated[dict[str, Any], Meta(max_length=0)] | None,
        Meta(
            description="Not supported: load an adapter (`adapter`, `/v1/adapters`), and name it in `from`."
        ),
    ] = None
    files: Empty = None
    messages: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None, Meta(description="Not supported.")
    ] = None
    quantize: Annotated[Literal[""] | None, Meta(description="Not supported.")] = None

    @property
    def streamed(self) -> bool:
        """Whether the answer is sent as lines of a stream."""
        return self.stream is not False


class OllamaCopyRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/copy`."""

    source: str
    destination: Annotated[str, Meta(pattern=NAME_PATTERN)]


class OllamaCreated(OllamaProgress, total=False):
    """Confirmation; ``warnings`` name the parts of the request that are not used."""

    warnings: list[str]


def create(models: Registry, parsed: OllamaCreateRequest) -> OllamaCreated:
    """Serve a model under another name.

    Raises:
        RequestError: a field is missing, or a parameter has an invalid value.
        UnknownModel: the base model does not exist.
        Conflict: the name is already in use.
    """
    name = parsed.model or parsed.name
    if not name or not parsed.base:
        missing = "from" if name else "model"
        raise RequestError(f"Missing field {missing!r}", param=missing)
    try:
        with named_as_given():
            options = known_options(parsed.parameters)
            options.sampling(None)
    except RequestError as error:
        param = (error.param or "").replace("options", "parameters", 1)
        raise RequestError(str(error).replace("options.", "parameters.", 1), param=param) from None
    base = _derived_of(models, parsed.base)
    models.derive(
        Derived(
            name.removesuffix(_LATEST),
            base.base,
            base.system_prompt if parsed.system is None else parsed.system,
            {**base.sampling, **options.given},
        )
    )
    created: OllamaCreated = {"status": "success"}
    if warnings := option_warnings(parsed.parameters):
        created["warnings"] = [warning.replace("options.", "parameters.") for warning in warnings]
    return created


def copy(models: Registry, parsed: OllamaCopyRequest) -> OllamaCreated:
    """Serve a model under another name too, with the same system prompt and sampling.

    Raises:
        UnknownModel: the source does not exist.
        Conflict: the new name is already in use.
    """
    source = _derived_of(models, parsed.source)
    models.derive(replace(source, name=parsed.destination.removesuffix(_LATEST)))
    return {"status": "success"}


def _derived_of(models: Registry, parsed: str) -> Derived:
    """Return the model, adapter or previously created name that a name refers to."""
    name = parsed if models.knows(parsed) else parsed.removesuffix(_LATEST)
    models.served(models.derived[name].base if name in models.derived else name)
    return models.derived.get(name) or Derived("", name)
