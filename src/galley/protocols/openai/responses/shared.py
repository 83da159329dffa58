"""Stored responses in Redis, for all servers that use it, and those that are being answered.

What a response needs to be answered again, its request and its seed, is stored before it is answered.
While a server answers it, a key with a short time to live says so. If that key has gone, the next server
from which the response is fetched answers it: from the same seed, and so with the same text.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from galley.cache.redis_client import redis_client
from galley.protocols.openai.responses.schemas import ResponseRequest
from galley.protocols.openai.responses.store import StoredResponse
from galley.settings.config import Settings

log = logging.getLogger("galley.server")

ALIVE_SECONDS: Final = 5.0
"""Time after a server's last sign of life after which another one may answer its responses."""

_BEAT_SECONDS: Final = 1.0
_OPERATION_SECONDS: Final = 2.0
_PREFIX: Final = "{galley-stored}"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is being answered.

    Attributes:
        request: the request.
        seed: of what is drawn.
        created: Unix time of its beginning.
        shown: the response object, as it is while it is in progress.
    """

    request: ResponseRequest
    seed: int
    created: int
    shown: dict[str, Any]


class SharedResponses:
    """The stored responses of all tenants in one Redis database.

    Bounds hold for each tenant: the number of responses, and the bytes of each. Failures of Redis are
    logged; what cannot be stored or found counts as not stored.
    """

    def __init__(self, settings: Settings) -> None:
        """Describe the connection; it is made when it is first needed.

        Raises:
            SettingsError: the package redis is missing, or the URL cannot be read.
        """
        self._redis = redis_client(
            settings.stored_responses_at, "stored_responses_at", _OPERATION_SECONDS
        )
        self._most = settings.stored_responses
        self._most_bytes = settings.stored_response_bytes
        self._seconds = settings.stored_response_seconds
        self._beats: dict[str, asyncio.Task[None]] = {}

    @property
    def is_on(self) -> bool:
        """Whether responses are stored."""
        return self._most > 0

    async def keep(self, tenant: str, name: str, response: StoredResponse) -> bool:
        """Store a response; return False if that fails or is not allowed."""
        if not self.is_on or response.size > self._most_bytes:
            return False
        key, index = _key(tenant, name), _key(tenant, "")
        with _logged():
            pipe = self._redis.pipeline()
            pipe.set(key, msgspec.msgpack.encode(tuple(response)), ex=self._seconds)
            pipe.zadd(index, {name: time.time()})
            pipe.expire(index, self._seconds)
            pipe.zrange(index, 0, -self._most - 1)
            oldest = (await pipe.execute())[-1]
            if oldest:
                await self._redis.zrem(index, *oldest)
                await self._redis.delete(*(_key(tenant, one.decode()) for one in oldest))
            return True
        return False

    async def find(self, tenant: str, name: str) -> StoredResponse | None:
        """Return a tenant's response by id; None if it is not stored, or not complete."""
        with _logged():
            data = await self._redis.get(_key(tenant, name))
            if data:
                return StoredResponse(*msgspec.msgpack.decode(data, type=tuple[bytes, bytes]))
        return None

    async def remove(self, tenant: str, name: str) -> bool:
        """Remove a response; return False if it is not there."""
        with _logged():
            if not await self._redis.delete(_key(tenant, name)):
                return False  # one that is being answered stays so
            await self._redis.zrem(_key(tenant, ""), name)
            await self._redis.delete(_key(tenant, name, "begun"))
            return True
        return False

    async def begin(self, tenant: str, name: str, begun: Begun, seconds: float) -> None:
        """Record that this server answers a response, for at most ``seconds``."""
        data = msgspec.msgpack.encode(begun)
        if len(data) > self._most_bytes:
            return
        with _logged():
            await self._redis.set(_key(tenant, name, "begun"), data, ex=max(1, int(seconds)))
            await self._claim(tenant, name)

    async def begun(self, tenant: str, name: str) -> Begun | None:
        """Return a response that is being answered, or was when its server ended."""
        with _logged():
            data = await self._redis.get(_key(tenant, name, "begun"))
            if data:
                return msgspec.msgpack.decode(data, type=Begun)
        return None

    async def take_over(self, tenant: str, name: str) -> bool:
        """Claim a response whose server gives no sign of life; return False if another one answers it."""
        with _logged():
            return await self._claim(tenant, name)
        return False

    async def ended(self, tenant: str, name: str) -> None:
        """Record that a response is complete, or will not be."""
        key = _key(tenant, name, "alive")
        if (beat := self._beats.pop(key, None)) is not None:
            beat.cancel()
        with _logged():
            await self._redis.delete(_key(tenant, name, "begun"), key)

    async def _claim(self, tenant: str, name: str) -> bool:
        key = _key(tenant, name, "alive")
        milliseconds = int(ALIVE_SECONDS * 1000)
        if not await self._redis.set(key, b"1", px=milliseconds, nx=True):
            return False
        self._beats[key] = asyncio.create_task(self._beat(key, milliseconds))
        return True

    async def _beat(self, key: str, milliseconds: int) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            with _logged():
                await self._redis.set(key, b"1", px=milliseconds)


def _key(tenant: str, *parts: str) -> str:
    digest = hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return ":".join((_PREFIX, digest, *parts))


@contextmanager
def _logged() -> Iterator[None]:
    """Log failures of Redis within the block, and end the block."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, msgspec.DecodeError) as error:
        log.warning("stored responses: %s", error or type(error).__name__)
