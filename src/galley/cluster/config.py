"""The file that describes a cluster: models and their releases, gateways, and how updates roll."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from galley.errors import SettingsError
from galley.settings.cluster import ClusterSettings
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.file import read_settings_file
from galley.settings.named_models import convert
from galley.settings.transfers import TransferSettings

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z"
_CLUSTER_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z"
"""A name without dots, because a cluster's applications are called NAME and NAME.MODEL.RELEASE."""

_VERSION: Final = r"^([A-Za-z0-9][A-Za-z0-9_.]{0,31})?\Z"
_LONGEST: Final = 86_400.0
_FEWEST_PORTS: Final = 32

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=_LONGEST)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]

_OF_CLUSTER: Final = frozenset(
    {"host", "port", "grpc_port", "models", "models_dir", "model_repository", "served_model_name"}
    | {"drain_seconds"}  # that of rollout
    | ClusterSettings.__annotations__.keys()
    | TransferSettings.__annotations__.keys()
) - {"gateway_headers", "objective"}
"""Settings of a gateway that the cluster determines."""

_SECRET: Final = frozenset(f.name for f in dataclasses.fields(Settings) if not f.repr)
"""Settings that must not stand where Ray's dashboard and state show them."""


def _check_ports(ports: tuple[int, int]) -> None:
    if ports[1] < ports[0]:
        raise ValueError(f"ports are {list(ports)}; the first must not be after the last")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file; unknown names are refused."""


class Scale(_Part, frozen=True):
    """How many replicas there are, depending on the load.

    Attributes:
        min: the fewest; 0: none while there are no requests.
        max: the most.
        up_seconds: how long the load has to be high before replicas are added.
        down_seconds: how long replicas have to have been superfluous before they are removed.
        zero_seconds: how long there have to be no requests before the last one is removed.
    """

    min: Replicas = 1
    max: Count = 1
    up_seconds: Seconds = 5.0
    down_seconds: Seconds = 300.0
    zero_seconds: Annotated[float, msgspec.Meta(ge=5, le=_LONGEST)] = 300.0

    def __post_init__(self) -> None:
        if self.max < self.min:
            raise ValueError(f"max is {self.max}, but min is {self.min}; max must be at least min")


class Resources(_Part, frozen=True):
    """The resources that Ray reserves for each replica.

    Attributes:
        cpus: cores; also the threads of the engine, unless ``settings`` has ``threads``.
        gpus: GPUs.
        memory_bytes: memory; 0: none is reserved.
        custom: amounts of resources that nodes were started with, by name.
    """

    cpus: Annotated[float, msgspec.Meta(ge=0, le=1024)] = 1.0
    gpus: Annotated[float, msgspec.Meta(ge=0, le=64)] = 0.0
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    custom: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = {}


class Slo(_Part, frozen=True):
    """The goal by which replicas are added.

    Attributes:
        ttft_ms: predicted milliseconds to the first token.
        load: running and waiting sequences, as a share of those that replicas run at the same time.
    """

    ttft_ms: Annotated[float, msgspec.Meta(gt=0, le=600_000)] = 2000.0
    load: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.8


class Release(_Part, frozen=True):
    """One version of a model's weights and settings, and its replicas.

    Attributes:
        model: folder, GGUF file, hub id or short name, the same on all nodes.
        revision: of a hub id.
        version: further part of the release's name; another one makes it another release.
        settings: settings of the engine.
        replicas: their number, or how it follows the load.
        resources: of each replica.
        slo: the goal by which replicas are added.
    """

    model: Annotated[str, msgspec.Meta(min_length=1)]
    revision: str = ""
    version: Annotated[str, msgspec.Meta(pattern=_VERSION)] = ""
    settings: dict[str, Any] = {}
    replicas: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | Scale = 1
    resources: Resources = Resources()
    slo: Slo = Slo()

    @property
    def name(self) -> str:
        """The release's name, which changes with everything that its answers may depend on."""
        settings = sorted(underscored(self.settings).items())
        parts = (self.model, self.revision, self.version, settings)
        digest = hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=4).hexdigest()
        return f"{self.version}-{digest}" if self.version else f"r{digest}"

    @property
    def scale(self) -> Scale:
        """The number of replicas as a range."""
        if isinstance(self.replicas, Scale):
            return self.replicas
        return Scale(min=self.replicas, max=self.replicas)


class Canary(Release, frozen=True):
    """A second release of a model, which gets a share of its requests.

    Attributes:
        share: in percent; 0: only requests that choose it.
    """

    share: Percent = 5.0


class Model(Release, frozen=True):
    """A model: its stable release, and perhaps a canary."""

    canary: Canary | None = None


class Gateways(_Part, frozen=True):
    """The HTTP servers, each of which serves all models.

    Attributes:
        replicas: their number.
        host: the address that each binds on its node.
        ports: first and last port; each gateway takes the first that is free on its node.
        cpus: cores that Ray reserves for each.
        settings: other settings of ``galley serve``.
    """

    replicas: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    host: str = "127.0.0.1"
    ports: tuple[Port, Port] = (8000, 8015)
    cpus: Annotated[float, msgspec.Meta(ge=0, le=1024)] = 0.5
    settings: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_ports(self.ports)


class Network(_Part, frozen=True):
    """How gateways reach replicas.

    Attributes:
        host: the address that replicas bind on their nodes; empty: the node's address in the cluster.
        ports: first and last port; each replica takes the first that is free on its node.
        token_file: secret of gateways and replicas, the same file on all nodes.
        ca, cert, key: certificates that encrypt the connections.
    """

    token_file: Annotated[str, msgspec.Meta(min_length=1)]
    host: str = ""
    ports: tuple[Port, Port] = (18_500, 18_755)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        _check_ports(self.ports)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of ``galley serve`` and ``galley replica`` for the connections."""
        given = {
            "cluster_token_file": self.token_file,
            "cluster_ca": self.ca,
            "cluster_cert": self.cert,
            "cluster_key": self.key,
        }
        return {name: value for name, value in given.items() if value}


class Rollout(_Part, frozen=True):
    """How an update rolls.

    Attributes:
        ready_seconds: how long a new release may take to have its first replica.
        drain_seconds: how long an old release, a replica or a gateway may take to complete its requests.
    """

    ready_seconds: Seconds = 600.0
    drain_seconds: Seconds = 120.0


class RayNode(_Part, frozen=True):
    """The Ray node that ``galley cluster up`` starts on this machine.

    Attributes:
        address: HOST:PORT of the head node to join; empty: be the head.
        port: of the head.
        node_ip: this machine's address in the cluster.
        cpus: cores that Ray may give away; 0: those of the machine.
        object_store_bytes: memory of Ray's object store, which Galley hardly uses.
        memory_bytes: memory that replicas may reserve; 0: as Ray decides.
        ports: first and last port of Ray's processes on the node.
    """

    address: str = ""
    port: Port = 6379
    node_ip: str = "127.0.0.1"
    cpus: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    object_store_bytes: Annotated[int, msgspec.Meta(ge=80_000_000)] = 128 * 1024 * 1024
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    ports: tuple[Port, Port] = (20_000, 20_255)

    def __post_init__(self) -> None:
        _check_ports(self.ports)
        if self.ports[1] - self.ports[0] < _FEWEST_PORTS:
            raise ValueError(f"ports are {list(self.ports)}; Ray needs at least {_FEWEST_PORTS}")


class ClusterConfig(_Part, frozen=True):
    """A whole cluster.

    Attributes:
        name: prefix of the names of Ray Serve's applications; without dots.
        models: the models by their name in the API.
        network: how gateways reach replicas.
        gateways: the HTTP servers.
        rollout: how an update rolls.
        ray: the Ray node that ``galley cluster up`` starts.
    """

    models: Annotated[dict[Name, Model], msgspec.Meta(min_length=1)]
    network: Network
    name: Annotated[str, msgspec.Meta(pattern=_CLUSTER_NAME)] = "galley"
    gateways: Gateways = Gateways()
    rollout: Rollout = Rollout()
    ray: RayNode = RayNode()

    def __post_init__(self) -> None:
        for name, model in self.models.items():
            for where, release in _releases(name, model):
                _settings_of(release, self.network, where)
        wrong = [one for one in underscored(self.gateways.settings) if one in _OF_CLUSTER]
        if wrong:
            raise SettingsError(
                f"gateways: settings: the cluster determines {', '.join(wrong)}; leave it out"
            )
        secret = [one for one in underscored(self.gateways.settings) if one in _SECRET]
        if secret:
            raise SettingsError(
                f"gateways: settings: {', '.join(secret)}: Ray shows these settings, so they must not have "
                "secrets; give api_key_file, or a GALLEY_ variable on the nodes"
            )
        self.gateway_settings()

    def gateway_settings(self) -> Settings:
        """Return the settings of a gateway, as far as the file determines them.

        Raises:
            SettingsError: they cannot be used.
        """
        given = convert(Settings, underscored(self.gateways.settings), source="gateways: settings")
        given |= {"replicas": 0, "replica_file": "replicas.json", "host": self.gateways.host}
        given |= self.network.settings
        return Settings(**given)

    def replica_settings(self, release: Release) -> dict[str, Any]:
        """Return the settings of a release's replicas by field."""
        return _settings_of(release, self.network, release.name)


def read_config(given: object) -> ClusterConfig:
    """Return the configuration in a file, or in the form of one.

    Args:
        given: the path, a configuration, its contents as a mapping, or a mapping ``{"config": PATH}``.

    Raises:
        SettingsError: it cannot be read, or has a mistake; the error names its place.
    """
    if isinstance(given, ClusterConfig):
        return given
    if isinstance(given, Mapping) and set(given) == {"config"}:
        given = given["config"]
    source = "the configuration"
    if isinstance(given, str | Path):
        source, path = str(given), Path(given)
        if not path.is_file():
            raise SettingsError(f"{path} is not a file; give the YAML file of a cluster")
        given = read_settings_file(path)
    try:
        return msgspec.convert(given, ClusterConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}") from None
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None


def _releases(name: str, model: Model) -> Iterator[tuple[str, Release]]:
    yield f"models: {name}", model
    if model.canary is not None:
        yield f"models: {name}: canary", model.canary
        if model.canary.name == model.name:
            raise SettingsError(
                f"models: {name}: the canary is the same as the stable release; change its model, "
                "settings or version"
            )


def _settings_of(release: Release, network: Network, where: str) -> dict[str, Any]:
    given = convert(EngineSettings, underscored(release.settings), source=f"{where}: settings")
    if twice := [one for one in ("model", "revision") if one in given]:
        raise SettingsError(
            f"{where}: settings: {twice[0]} is a field of the release; move it out of settings"
        )
    given |= {"model": release.model, **network.settings}
    if release.revision:
        given["revision"] = release.revision
    if "threads" not in given and release.resources.cpus >= 1:
        given["threads"] = int(release.resources.cpus)
    try:
        Settings(**given)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    return given


def underscored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose names may have been spelled with hyphens."""
    return {name.replace("-", "_"): value for name, value in settings.items()}
