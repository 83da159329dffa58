"""The connection of commands to Ray Serve."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema

from galley.cluster.config import ClusterConfig
from galley.cluster.on_ray import figures
from galley.cluster.on_ray.node import head_address
from galley.cluster.on_ray.plan import PlannedRelease
from galley.errors import GalleyError


class ServeClient:
    """Ray Serve as commands use it; see :class:`galley.cluster.on_ray.deploy.Client`."""

    def __init__(self, client: Any) -> None:
        """Create it; ``client``: that of Ray Serve."""
        self._client = client

    def applications(self) -> dict[str, dict[str, Any]]:
        """Return the details of each application by name."""
        found: dict[str, dict[str, Any]] = self._client.get_serve_details()["applications"]
        return found

    def deploy(self, applications: Sequence[dict[str, Any]]) -> None:
        """Have these applications, in the form of Ray Serve's configuration files, and no others."""
        # Clients come to the gateways, so no proxies are needed.
        schema = {"proxy_location": "Disabled", "applications": applications}
        self._client.deploy_apps(ServeDeploySchema.model_validate(schema))

    def in_flight(self, name: str, releases: Iterable[PlannedRelease]) -> int:
        """Return how many sequences releases of a cluster have."""
        return figures.in_flight(name, releases)


def connect(config: ClusterConfig) -> ServeClient:
    """Connect this process to the cluster and return Ray Serve, which runs from now on.

    Raises:
        GalleyError: there is no Ray cluster at the address.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if not ray.is_initialized():
        try:
            ray.init(address=head_address(config), log_to_driver=False, logging_level="WARNING")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise GalleyError(
                f"no Ray cluster answers at {head_address(config)} ({_first_line(error)}); start one with "
                "galley cluster up"
            ) from None
    serve.start(proxy_location="Disabled")
    # Public ways to deploy several applications and to read what is deployed need Ray's dashboard.
    return ServeClient(serve.context._get_global_client())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
