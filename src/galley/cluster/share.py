"""A model's replicas by the settings: how many, where, and each one's share of this machine."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from galley.cluster.members import following, read_members
from galley.cluster.remote import remote_source
from galley.cluster.router import PrefixRouter, cached_tokens
from galley.errors import SettingsError
from galley.links.access import read_access
from galley.machine import available_cores
from galley.settings.cluster import ClusterSettings
from galley.settings.engine import EngineSettings

AnySettings = TypeVar("AnySettings", bound=EngineSettings)


def fleet_of(settings: ClusterSettings, model: str = "") -> dict[str, Any]:
    """Return the attributes of a :class:`galley.service.fleet_plan.FleetPlan` that the settings determine.

    ``model``: its name in the API, by which ``replica_file`` lists its replicas.

    Raises:
        SettingsError: the token, a certificate or the list of replicas cannot be read, or an address has
            another form.
    """
    if settings.replica_file:
        return _followed(settings, model)
    remotes = []
    if settings.replica or settings.role != "off":
        access = read_access(settings)  # with a role, before the engine has loaded the model
        seats = settings.running_limit
        remotes = [remote_source(address, access, seats) for address in settings.replica]
    several = settings.replicas + len(remotes) > 1
    router = PrefixRouter() if several else None
    return {
        "replicas": settings.replicas,
        "remotes": remotes,
        "router": router,
        "transfer": settings.transfer_plan,
        "cached_tokens": cached_tokens if several and settings.role != "off" else None,
    }


def _followed(settings: ClusterSettings, model: str) -> dict[str, Any]:
    path = Path(settings.replica_file)
    if model not in (listed := read_members(path)):
        names = ", ".join(listed) or "none"
        raise SettingsError(f"replica_file {path} lacks the model {model}; it has: {names}")
    members = following(path, model, read_access(settings), settings.running_limit)
    return {"replicas": 0, "members": members, "router": PrefixRouter()}


def share_of_machine(settings: AnySettings, replicas: int) -> AnySettings:
    """Return the settings of each of a model's engines that run on one machine at the same time.

    Cores and the memory for keys and values are divided among them, unless settings state an engine's own.
    """
    if replicas < 2:
        return settings
    threads = settings.threads
    if threads is None and settings.device == "cpu":
        threads = max(1, available_cores() // (replicas * settings.ranks_here))
    fraction = settings.kv_memory_fraction / replicas
    return dataclasses.replace(settings, threads=threads, kv_memory_fraction=fraction)
