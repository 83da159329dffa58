"""The only place in the gateway that knows which class answers requests: an engine process's client."""

from typing import Any, Protocol

from galley.gateway.submitter import Submitter
from galley.service.client import EngineClient
from galley.settings.engine import EngineSettings


class MakeSubmitter(Protocol):
    """Creates the submitter of a model's requests; the arguments are those of :class:`EngineClient`."""

    def __call__(
        self, settings: EngineSettings, folder: str, *, max_queue: int, **hooks: Any
    ) -> Submitter:
        """Create a submitter; :meth:`Submitter.launch` starts it."""


def make_submitter(
    settings: EngineSettings, folder: str, *, max_queue: int, **hooks: Any
) -> Submitter:
    """Create the client of an engine process; see :class:`EngineClient` for the arguments."""
    return EngineClient(settings, folder, max_queue=max_queue, **hooks)
