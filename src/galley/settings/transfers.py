"""The settings by which engines exchange keys and values: prefill and decode apart."""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from galley.errors import SettingsError
from galley.settings.cache import CacheSettings
from galley.settings.fields import setting
from galley.settings.values import LAST_PORT, Count, Seconds
from galley.types.transfers import Role, TransferPlan

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[\da-fA-F:.]+)\]|(?P<host>[\w.-]+)):(?P<port>\d{1,5})", re.ASCII
)
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  (these are refused)


@dataclass(frozen=True, kw_only=True)
class TransferSettings(CacheSettings):
    """The settings of transfers of keys and values between engines, on this machine and on others."""

    role: Role = setting(
        "off",
        "Cluster",
        "exchange KV blocks with other servers: prefill computes prompts for others, decode fetches their "
        "blocks, both does both; needs cluster_token_file (executors cpu and reference)",
    )
    kv_transfer: str = setting(
        "127.0.0.1:0",
        "Cluster",
        "HOST:PORT at which the engine offers its KV blocks and others reach it, with role prefill or "
        "both; port 0: any free one",
    )
    kv_transfer_seconds: Seconds = setting(
        5.0,
        "Cluster",
        "seconds in which the KV blocks of a request must arrive; late blocks are computed",
    )
    kv_hold_seconds: Seconds = setting(
        30.0,
        "Cluster",
        "seconds for which KV blocks that another server will fetch are evicted only after all others",
    )
    kv_peer: tuple[str, ...] = setting(
        (),
        "Cluster",
        "address or network (10.0.0.0/8) of servers from which requests may have KV blocks fetched; repeat "
        "for several; default: this machine",
    )
    prefill_replica: tuple[str, ...] = setting(
        (),
        "Cluster",
        "HOST:PORT of a galley replica with role prefill, which computes long prompts first; repeat for "
        "several",
    )
    prefill_tokens: Count = setting(
        512,
        "Cluster",
        "a prompt with at least this many tokens that are not cached here is computed by a prefill_replica",
    )
    prefill_seconds: Seconds = setting(
        60.0,
        "Cluster",
        "seconds in which a prefill_replica must compute a prompt; after that, it is computed here",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_address()
        self.kv_networks  # noqa: B018  (checks them)
        if self.prefill_replica and self.role not in ("decode", "both"):
            raise SettingsError(
                f"prefill_replica is given, but role is {self.role}; set it to decode or both"
            )
        if self.role != "off" and not self.prefix_cache:
            raise SettingsError(f"role is {self.role}, but prefix_cache is off; turn it on")

    @property
    def transfer_plan(self) -> TransferPlan | None:
        """How the engine exchanges blocks with others; None: it does not."""
        if self.role == "off":
            return None
        host, port = self._address()
        return TransferPlan(
            role=self.role,
            host=host,
            port=port,
            seconds=self.kv_transfer_seconds,
            hold_seconds=self.kv_hold_seconds,
            cluster_token_file=self.cluster_token_file,
            cluster_ca=self.cluster_ca,
            cluster_cert=self.cluster_cert,
            cluster_key=self.cluster_key,
        )

    @property
    def kv_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """The networks of servers from which requests may have blocks fetched."""
        try:
            return [ipaddress.ip_network(text) for text in self.kv_peer or ("127.0.0.0/8", "::1")]
        except ValueError as error:
            raise SettingsError(
                f"kv_peer: {error}; expected an address or a network, such as 10.0.0.0/8"
            ) from None

    def _address(self) -> tuple[str, int]:
        match = _ADDRESS.fullmatch(self.kv_transfer)
        if match is None or int(match["port"]) > LAST_PORT:
            raise SettingsError(
                f"kv_transfer is {self.kv_transfer!r}; expected HOST:PORT, such as 10.0.0.7:8600"
            )
        return match["v6"] or match["host"], int(match["port"])

    def _check_address(self) -> None:
        host, _ = self._address()
        if host in _EVERYWHERE:
            raise SettingsError(
                f"kv_transfer is {self.kv_transfer!r}, but others need an address by which they reach this "
                "machine: give that one"
            )
