"""Replicas elsewhere that compute prompts: prefill and decode apart.

    request  -->  a prefill replica computes the prompt     (role prefill, as a request of one token)
                  its last Output says where the blocks are
             -->  a replica of the model fetches them, and continues

A prompt is computed there if it is long, and not cached where it would be continued. Whatever goes wrong,
the replica that continues computes what it has not got.
"""

import asyncio
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Final

import msgspec

from galley.cluster.remote import remote_source
from galley.cluster.router import PrefixRouter, cached_tokens
from galley.errors import EngineNotReady, GalleyError
from galley.links.access import read_access
from galley.rare_warnings import RareWarnings
from galley.service.client import EngineClient
from galley.service.streams import OutputStream
from galley.settings.cluster import ClusterSettings
from galley.types import EngineRequest, Generate, Output, SamplingParams
from galley.types.transfers import KVPeer

_CHECK_SECONDS: Final = 0.25
"""Seconds from one look at the state of the replicas to the next."""

_ONE_TOKEN: Final = SamplingParams(temperature=0.0, max_tokens=1, seed=0)


class RemotePrefill:
    """The prefill replicas of a model; see :class:`galley.service.prefill.PrefillPool`.

    Args:
        settings: name the replicas.
        folder: the checkpoint.
        max_queue: prompts that may wait in addition to those that are computed.

    Raises:
        SettingsError: the token or a certificate cannot be read, or an address has another form.
    """

    def __init__(self, settings: ClusterSettings, folder: str, *, max_queue: int) -> None:
        access = read_access(settings)
        self._client = EngineClient(
            settings,
            folder,
            max_queue=max_queue,
            replicas=0,
            remotes=[
                remote_source(address, access, settings.running_limit, setting="prefill_replica")
                for address in settings.prefill_replica
            ],
            router=PrefixRouter(),
        )
        self._warnings = RareWarnings("galley.transfers")
        self._least = settings.prefill_tokens
        self._seconds = settings.prefill_seconds

    def launch(self) -> None:
        """See :class:`galley.service.prefill.PrefillPool`."""
        self._client.launch()

    async def close(self) -> None:
        """See :class:`galley.service.prefill.PrefillPool`."""
        await self._client.close()

    def wants(self, request: EngineRequest, held: Sequence[Set[bytes]]) -> bool:
        """See :class:`galley.service.prefill.PrefillPool`."""
        payload = request.payload
        if not isinstance(payload, Generate) or request.kv_from is not None or request.offered:
            return False
        # The probabilities of a prompt's tokens come with its own rows.
        if payload.sampling.prompt_logprobs is not None or self._client.state != "ready":
            return False
        if len(payload.prompt) < self._least:
            return False
        return len(payload.prompt) - max(cached_tokens(request, held), default=0) >= self._least

    async def compute(self, request: EngineRequest, deadline: float) -> KVPeer | None:
        """See :class:`galley.service.prefill.PrefillPool`."""
        payload = request.payload
        assert isinstance(payload, Generate)
        prompt = msgspec.structs.replace(
            request,
            id=f"{request.id}-prefill",
            payload=Generate(prompt=payload.prompt, sampling=_ONE_TOKEN),
            offered=True,
        )
        until = min(deadline, time.monotonic() + self._seconds)
        try:
            [stream] = self._client.submit_all([prompt], until)
            try:
                last = await self._last(stream)
                if last is not None and last.error is not None:
                    self._warnings.add(f"a prompt was not computed elsewhere: {last.error}")
                return None if last is None else last.kv_peer
            finally:
                stream.cancel()
        except EngineNotReady:
            return None  # its replicas are restarting
        except GalleyError as error:
            self._warnings.add(f"a prompt was not computed elsewhere: {error}")
        return None

    async def _last(self, stream: OutputStream) -> Output | None:
        """Return the last Output; None: no replica is ready any longer, and this server need not wait."""
        while self._client.state == "ready":
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    output = await anext(stream)
                if output.finish_reason is not None:
                    return output
        return None
