"""The options of a request in Ollama's protocol, and which of them are honored."""

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError, shown
from galley.protocols.common.messages import (
    Strict,
)
from galley.protocols.common.validate import validate
from galley.types import Grammar, SamplingParams

MAX_STOPS: Final = 2048

_MOST_NAMED: Final = 8
"""Number of unknown options that a warning names."""

_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", re.ASCII)
_DURATION: Final = re.compile(r"(-?)(0|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h)){1,4})", re.ASCII)
"""Durations in Go's notation, which Ollama accepts."""
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_WITHOUT_LIMIT: Final = (-1, -2)
"""Values of ``num_predict``: no limit, and the rest of the context."""


_PASSED_ON: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_last_n": "penalty_window",
}
"""Ollama's options -> fields of SamplingParams."""


KeepAlive: TypeAlias = Annotated[
    float | str | None,
    Meta(
        description="How long a model that is loaded on request stays loaded after this request: "
        "seconds, or a duration such as `5m` or `1h30m`; below 0: forever. Other models stay loaded."
    ),
]


class OllamaOptions(Strict, frozen=True, kw_only=True):
    """The options supported here. The model's defaults apply where none is given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(lt=2**31)] | None = None
    min_p: float | None = None
    seed: Annotated[int | None, Meta(description="-1: drawn at random.")] = None
    num_predict: Annotated[int | None, Meta(description="-1 and -2: no limit.")] = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Annotated[
        int | None,
        Meta(
            description="Number of last tokens that penalties apply to. -1, the default: all; 0: none."
        ),
    ] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Literal[0] | None = None
    tfs_z: Annotated[float, Meta(ge=1.0, le=1.0)] | None = None
    typical_p: Annotated[float, Meta(ge=1.0, le=1.0)] | None = None
    num_ctx: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Accepted and ignored: the context is the model's. A shorter context gives a "
            "warning."
        ),
    ] = None
    num_keep: Annotated[
        int | None, Meta(description="Accepted and ignored: nothing is truncated.")
    ] = None
    num_batch: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    num_gpu: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    main_gpu: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    num_thread: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    numa: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    low_vram: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    use_mmap: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    use_mlock: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """Fields of SamplingParams that the options set."""
        given: dict[str, Any] = {
            field: value
            for name, field in _PASSED_ON.items()
            if (value := getattr(self, name)) is not None
        }
        if self.num_predict is not None and self.num_predict not in _WITHOUT_LIMIT:
            given["max_tokens"] = self.num_predict
        if self.stop:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return given

    def sampling(self, grammar: Grammar | None) -> SamplingParams:
        """Return the options as sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(grammar=grammar, **self.given)


class _WithOptions(Strict, frozen=True, kw_only=True):
    """Wraps options so that errors name them as requests do: ``options.temperature``."""

    options: OllamaOptions = OllamaOptions()


_KNOWN: Final = msgspec.json.schema(OllamaOptions)["$defs"]["OllamaOptions"]["properties"]


Options: TypeAlias = Annotated[
    dict[str, Any] | None,
    Meta(
        description="How to generate. Nulls are defaults; unknown options are ignored, with a warning in "
        "the answer.",
        extra_json_schema={"properties": _KNOWN},
    ),
]


def known_options(given: dict[str, Any] | None) -> OllamaOptions:
    """Return the options that are supported here and are not null.

    Raises:
        RequestError: an option has an invalid value; ``param`` names the option.
    """
    known = {n: v for n, v in (given or {}).items() if n in _KNOWN and v is not None}
    return validate(_WithOptions, {"options": known}).options


def option_warnings(given: dict[str, Any] | None) -> list[str]:
    """Return a warning that names the unsupported options that are not null, or an empty list."""
    unknown = [n for n, v in (given or {}).items() if n not in _KNOWN and v is not None]
    if not unknown:
        return []
    names = ", ".join(shown(f"options.{name[:64]}") for name in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return [f"unknown options, ignored: {names}{more}"]


def kept_seconds(keep_alive: float | str | None) -> float | None:
    """Return ``keep_alive`` in seconds; below 0: forever; None: as in the settings.

    Raises:
        RequestError: it is not a duration.
    """
    if keep_alive is None or isinstance(keep_alive, int | float):
        return keep_alive
    match = _DURATION.fullmatch(keep_alive)
    if match is None:
        raise RequestError(
            f"keep_alive must be seconds, or a duration such as 5m or 1h30m, got "
            f"{shown(keep_alive)}",
            param="keep_alive",
        )
    parts = _PART.findall(match[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if match[1] else seconds
