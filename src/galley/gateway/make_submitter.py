"""The only place in the gateway that knows which class answers requests: the client of its engines."""

from typing import Any, Protocol

from galley.cluster.prefill import RemotePrefill
from galley.cluster.share import fleet_of, share_of_machine
from galley.gateway.submitter import Submitter
from galley.service.client import EngineClient
from galley.service.kv_events import kv_events
from galley.settings.cluster import ClusterSettings
from galley.settings.engine import EngineSettings


class MakeSubmitter(Protocol):
    """Creates the submitter of a model's requests; the arguments are those of :class:`EngineClient`."""

    def __call__(
        self,
        settings: EngineSettings,
        folder: str,
        *,
        max_queue: int,
        name: str = "",
        **hooks: Any,
    ) -> Submitter:
        """Create a submitter; :meth:`Submitter.launch` starts it. ``name``: the model's in the API."""


def make_submitter(
    settings: EngineSettings, folder: str, *, max_queue: int, name: str = "", **hooks: Any
) -> Submitter:
    """Create the client of a model's engines; see :class:`EngineClient` for the other arguments.

    Args:
        name: the model's name in the API, by which ``replica_file`` lists its replicas.

    Raises:
        SettingsError: replicas on other machines or ``kv_events`` cannot be used with these settings.
    """
    if isinstance(settings, ClusterSettings):
        hooks |= fleet_of(settings, name)
        if settings.prefill_replica:
            hooks |= {"prefill": RemotePrefill(settings, folder, max_queue=max_queue)}
        if settings.kv_events:
            events = kv_events(settings.kv_events, settings.kv_events_topic)
            hooks |= {"on_blocks": events.changed, "publishes_tokens": True}
        settings = share_of_machine(settings, settings.replicas)
    return EngineClient(settings, folder, max_queue=max_queue, **hooks)
