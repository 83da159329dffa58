"""A served model under another name, with a system prompt and sampling of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from galley.types import SamplingParams

MOST_DERIVED: Final = 1000
"""Further names that one server keeps."""

_OPEN: Final = SamplingParams()


@dataclass(frozen=True)
class Derived:
    """What a further name stands for.

    Attributes:
        name: in the API.
        base: the name of a served model or of one of its adapters.
        system_prompt: of conversations that have none; empty: the model's.
        sampling: fields of SamplingParams -> what requests get that leave them open.
    """

    name: str
    base: str
    system_prompt: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, params: SamplingParams) -> SamplingParams:
        """``params`` with what they leave open as this name has it."""
        own = {
            name: value
            for name, value in self.sampling.items()
            if name != "max_tokens" and getattr(params, name) == getattr(_OPEN, name)
        }
        return msgspec.structs.replace(params, **own) if own else params

    @property
    def max_tokens(self) -> int | None:
        """Of an answer, as far as the context has room; None: as the model has it."""
        return self.sampling.get("max_tokens")
