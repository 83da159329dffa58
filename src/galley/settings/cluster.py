"""The settings of a model's replicas."""

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from galley.settings.cache import CacheSettings
from galley.settings.engine import setting

MOST_REPLICAS: Final = 256
"""Maximum number of engines of one model on one machine."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(CacheSettings):
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
    cluster_token_file: str = setting(
        "",
        "Cluster",
        "file with the secret by which servers and replicas on other machines recognise each other",
    )
    cluster_ca: str = setting(
        "",
        "Cluster",
        "certificate authority in PEM of all machines' certificates; encrypts the connections between them",
    )
    cluster_cert: str = setting("", "Cluster", "this machine's certificate in PEM, for cluster_ca")
    cluster_key: str = setting("", "Cluster", "private key of cluster_cert in PEM, unencrypted")
