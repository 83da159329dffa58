"""The one place of the gateway that knows what answers requests: the client of an engine process."""

from typing import Any, Protocol

from galley.gateway.submitter import Submitter
from galley.service.client import EngineClient
from galley.settings.engine import EngineSettings


class MakeSubmitter(Protocol):
    """Makes what answers a model's requests; the arguments are those of :class:`EngineClient`."""

    def __call__(
        self, settings: EngineSettings, folder: str, *, max_queue: int, **hooks: Any
    ) -> Submitter:
        """Make it; it is started by :meth:`Submitter.launch`."""


def make_submitter(
    settings: EngineSettings, folder: str, *, max_queue: int, **hooks: Any
) -> Submitter:
    """Make the client of an engine process; see :class:`EngineClient` for the arguments."""
    return EngineClient(settings, folder, max_queue=max_queue, **hooks)
