"""Where keys and values of a prompt can be fetched, and how engines exchange them."""

from typing import Final, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["off", "prefill", "decode", "both"]
"""The role of an engine in the exchange of keys and values: none, offer its own, fetch, or both."""

MOST_BLOCKS: Final = 1 << 18
"""Maximum number of blocks in a request for blocks."""


class KVPeer(msgspec.Struct, frozen=True, array_like=True):
    """An engine that has the blocks of a prompt.

    Attributes:
        host, port: where it offers them.
        tokens: number of leading tokens whose blocks it has.
    """

    host: str
    port: int
    tokens: int


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine exchanges blocks with others. The names of files are those of the settings.

    Attributes:
        role: whether it offers blocks, fetches them, or both.
        host: the address at which it offers them, and by which others reach it.
        port: its port there; 0: any free one.
        seconds: time within which the blocks of a request have to arrive; what is late is computed.
        hold_seconds: how long blocks that a peer will fetch are kept while others are evicted first.
    """

    role: Role
    host: str = "127.0.0.1"
    port: int = 0
    seconds: float = 5.0
    hold_seconds: float = 30.0
    cluster_token_file: str = ""
    cluster_ca: str = ""
    cluster_cert: str = ""
    cluster_key: str = ""

    @property
    def offers(self) -> bool:
        """Whether the engine offers its blocks."""
        return self.role in ("prefill", "both")

    @property
    def is_local(self) -> bool:
        """Whether only engines on this machine reach its address."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def fetches(self) -> bool:
        """Whether the engine fetches blocks of others."""
        return self.role in ("decode", "both")
