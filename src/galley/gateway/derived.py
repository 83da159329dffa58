"""A served model under another name, with a separate system prompt and sampling parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from galley.types import SamplingParams

MOST_DERIVED: Final = 1000
"""Maximum number of derived models of one server."""

_OPEN: Final = SamplingParams()


@dataclass(frozen=True)
class Derived:
    """A derived model: a further name of a served model.

    Attributes:
        name: its name in the API.
        base: the name of a served model or of one of its adapters.
        system_prompt: default for conversations without one; empty: the model's.
        sampling: fields of SamplingParams -> defaults for requests that do not set them.
    """

    name: str
    base: str
    system_prompt: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, params: SamplingParams) -> SamplingParams:
        """Return ``params`` with this model's defaults for the fields that are not set."""
        own = {
            name: value
            for name, value in self.sampling.items()
            if name != "max_tokens" and getattr(params, name) == getattr(_OPEN, name)
        }
        return msgspec.structs.replace(params, **own) if own else params

    @property
    def max_tokens(self) -> int | None:
        """Default ``max_tokens`` of an answer, within the context; None: the model's default."""
        return self.sampling.get("max_tokens")
