"""``kv_transfer_params``: prefill and decode apart, in the form of vLLM, llm-d's sidecar and Dynamo.

A prefill server gets ``do_remote_decode`` with ``max_tokens`` 1, and its answer says where the blocks of
the prompt are. A decode server gets these parameters, with ``do_remote_prefill``.
"""

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias, TypedDict

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.gateway.call import Call
from galley.types import BLOCK_TOKENS
from galley.types.transfers import MOST_BLOCKS, KVPeer

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

PARAM: Final = "kv_transfer_params"


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keys and values of the prompt are, or that another server will fetch them.

    Further fields, which other engines and routers add, have no effect.
    """

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: Annotated[str, Meta(max_length=256)] | None = None
    remote_block_ids: Annotated[list[Any], Meta(max_length=MOST_BLOCKS)] | None = None
    remote_host: Annotated[str, Meta(max_length=256)] | None = None
    remote_port: Annotated[int, Meta(ge=1, le=65535)] | None = None


class KVTransfer(TypedDict):
    """Where the blocks of a prompt can be fetched, for the request to the decode server as it is."""

    do_remote_prefill: bool
    do_remote_decode: bool
    remote_engine_id: str
    remote_block_ids: list[int]
    remote_host: str
    remote_port: int


def transfer_of(peer: KVPeer | None) -> KVTransfer | None:
    """Return the ``kv_transfer_params`` of an answer; None: there are no blocks to fetch.

    ``remote_block_ids`` numbers the full blocks of the prompt; their hashes follow from the prompt.
    """
    if peer is None:
        return None
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{peer.host}:{peer.port}",
        "remote_block_ids": list(range(peer.tokens // BLOCK_TOKENS)),
        "remote_host": peer.host,
        "remote_port": peer.port,
    }


def take_transfer(
    params: KVTransferParams | None, call: Call, *, streams: bool, prompts: int = 1
) -> None:
    """Note in the call's caller what the parameters say.

    Args:
        params: those of the request.
        call: the request's call.
        streams: whether the answer is streamed.
        prompts: number of the request's prompts.

    Raises:
        RequestError: they contradict each other, or this server cannot honor them.
    """
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return
    if params.do_remote_decode and params.do_remote_prefill:
        raise _refusal("do_remote_decode and do_remote_prefill exclude each other")
    here, caller = call.info.transfers, call.caller
    if here is None:
        raise _refusal("this server exchanges no keys and values: it is started without --role")
    if params.do_remote_prefill:
        if here.role == "prefill":
            raise _refusal("do_remote_prefill is true, but the role of this server is prefill")
        caller.kv_from = peer_of(params, call.served.settings.kv_networks)
        return
    if not here.port:
        raise _refusal("do_remote_decode is true, but the role of this server is decode")
    if streams:
        raise _refusal("do_remote_decode needs stream: false")
    if prompts != 1:
        raise _refusal(f"do_remote_decode needs one prompt; there are {prompts}")
    caller.offered = True


def peer_of(params: KVTransferParams, networks: Networks) -> KVPeer:
    """Return where the blocks are.

    Args:
        params: those of a request with ``do_remote_prefill``.
        networks: those in which the peer has to be.

    Raises:
        RequestError: parameters are missing, or the peer is elsewhere.
    """
    host, port, blocks = params.remote_host, params.remote_port, params.remote_block_ids
    if host is None or port is None or blocks is None:
        names = ("remote_host", "remote_port", "remote_block_ids")
        missing = [name for name in names if getattr(params, name) is None]
        raise _refusal(f"do_remote_prefill needs {', '.join(missing)}")
    if not is_peer(host, networks):
        raise _refusal(
            f"remote_host {host!r} is not an IP address in kv_peer, the networks from which this server "
            "fetches keys and values (--kv-peer)"
        )
    return KVPeer(host, port, len(blocks) * BLOCK_TOKENS)


def is_peer(host: str, networks: Networks) -> bool:
    """Return whether a host is an address in one of the networks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name: who resolves it decides where it leads
        return False
    return any(address in network for network in networks)


def _refusal(what: str) -> RequestError:
    return RequestError(f"{PARAM}: {what}", param=PARAM)
