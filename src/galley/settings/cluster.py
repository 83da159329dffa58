"""The settings of a model's replicas."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from galley.errors import SettingsError
from galley.settings.fields import setting
from galley.settings.transfers import TransferSettings
from galley.settings.values import LAST_PORT

MOST_REPLICAS: Final = 256
"""Maximum number of engines of one model on one machine."""

_OBJECTIVE = re.compile(r"[A-Za-z0-9][\w.-]{0,252}=-?(100|\d{1,2})", re.ASCII)

_ENDPOINT = re.compile(r"tcp://\S+:(?P<port>\d{1,5})|ipc://\S+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(TransferSettings):
    """The settings of a model's replicas, on this machine and on others."""

    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] = setting(
        1,
        "Cluster",
        "engines of the model on this machine, which share its cores and memory; requests continue on "
        "another if one ends; 0: only those of replica",
    )
    replica: tuple[str, ...] = setting(
        (),
        "Cluster",
        "HOST:PORT of an engine of the model on another machine (galley replica); repeat for several",
    )
    replica_file: str = setting(
        "",
        "Cluster",
        "YAML file with the replicas on other machines by model and release, which is read again when it "
        "changes",
    )
    gateway_headers: bool = setting(
        False,
        "Cluster",
        "honor x-gateway-inference-objective, x-gateway-inference-fairness-id, x-slo-ttft-ms and (with "
        "role decode or both) x-prefiller-host-port; only behind a gateway that sets them",
    )
    objective: tuple[str, ...] = setting(
        (),
        "Cluster",
        "priority of an objective that a gateway names, NAME=PRIORITY, lower is sooner; repeat for several",
    )
    kv_events: str = setting(
        "",
        "Cluster",
        "ZeroMQ endpoint (tcp://*:5557) at which changes of the prefix cache are published in the form of "
        "vLLM's KV events, tokens included, for routers outside; needs the extra kv-events",
    )
    kv_events_topic: str = setting(
        "", "Cluster", "topic of kv_events; llm-d's routers expect kv@IP@MODEL"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tensor_parallel_rank and self.replicas > 1:
            raise SettingsError(
                f"replicas is {self.replicas}, but the ranks of tensor_parallel_rank serve one engine; set "
                "replicas to 1, and use replica for engines elsewhere that have ranks of their own"
            )
        self._check_objectives()
        self._check_replica_file()
        self._check_kv_events()
        if self.role in ("prefill", "both") and self.replicas > 1 and self._address()[1]:
            raise SettingsError(
                f"kv_transfer is {self.kv_transfer!r}, but each of {self.replicas} replicas needs its own "
                "port; give port 0"
            )

    @property
    def objectives(self) -> dict[str, int] | None:
        """Priority of each objective by name; None if the headers of gateways are not honored."""
        if not self.gateway_headers:
            return None
        pairs = (text.partition("=") for text in self.objective)
        return {name: int(priority) for name, _, priority in pairs}

    def _check_kv_events(self) -> None:
        match = _ENDPOINT.fullmatch(self.kv_events)
        if self.kv_events and (match is None or int(match["port"] or 0) > LAST_PORT):
            raise SettingsError(
                f"kv_events is {self.kv_events!r}; expected tcp://HOST:PORT (tcp://*:5557) or ipc://FILE"
            )
        if self.kv_events_topic and not self.kv_events:
            raise SettingsError("kv_events_topic is given, but kv_events is not; give both")
        if self.kv_events and not self.prefix_cache:
            raise SettingsError("kv_events is given, but prefix_cache is off; turn it on")
        if self.kv_events and (self.replicas != 1 or self.replica or self.replica_file):
            raise SettingsError(
                "kv_events is for servers with one engine, among which a router outside chooses: leave out "
                "kv_events, or replicas and replica"
            )

    def _check_replica_file(self) -> None:
        if self.replica_file and (self.replica or self.replicas):
            raise SettingsError(
                "replica_file lists all replicas of the models: give replicas of 0, and leave out replica"
            )
        if self.replica_file and self.prefill_replica:
            raise SettingsError(
                "replica_file is given, and so is prefill_replica, which cannot tell releases apart; leave "
                "out prefill_replica, or replica_file"
            )
        if self.replica_file and (self.response_cache != "off" or self.response_cache_store):
            raise SettingsError(
                "replica_file is given, and so is the response cache, which cannot tell the answers of "
                "releases apart; leave out response_cache and response_cache_store, or replica_file"
            )

    def _check_objectives(self) -> None:
        for text in self.objective:
            if not _OBJECTIVE.fullmatch(text):
                raise SettingsError(
                    f"objective: {text!r} is not NAME=PRIORITY with a priority of -100 to 100"
                )
        names = [text.partition("=")[0] for text in self.objective]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(
                f"objective: {twice} has more than one priority; leave out all but one"
            )
        if self.objective and not self.gateway_headers:
            raise SettingsError("objective is given, but gateway_headers is off; turn it on")
