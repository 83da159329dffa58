"""Answers in Redis or Valkey, shared by all servers that use it; needs no modules.

Each entry is a value with a time to live. Sorted sets hold when entries were last used, when they end, and
their sizes, from which a script keeps the bounds. All keys share a hash tag, so that a cluster holds them
in one slot.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from galley.cache.entry import Entry, pack, unpack
from galley.cache.gathered_reads import GatheredReads
from galley.cache.redis_client import redis_client
from galley.cache.store import OVERHEAD_BYTES, Bounds, Kept, Selection, Size, StoreError

SCHEMES: Final = ("redis://", "rediss://", "unix://")

_PREFIX: Final = "{galley-responses}"
_USED: Final = f"{_PREFIX}:used"
_SIZES: Final = f"{_PREFIX}:sizes"
_EXPIRES: Final = f"{_PREFIX}:expires"
_HITS: Final = f"{_PREFIX}:hits"
_TOTAL: Final = f"{_PREFIX}:bytes"
_QUESTIONS: Final = f"{_PREFIX}:questions"

_SCANNED: Final = 500
"""Entries read at a time when they are listed or removed."""

_INDEX: Final = (_USED, _SIZES, _EXPIRES, _HITS, _TOTAL, _QUESTIONS)
"""KEYS of the scripts."""

_REMOVE_ONE: Final = """
local prefix = ARGV[1]
local function forget(name)
    local size = tonumber(redis.call('ZSCORE', KEYS[2], name) or 0)
    for _, index in ipairs({KEYS[1], KEYS[2], KEYS[3]}) do redis.call('ZREM', index, name) end
    redis.call('HDEL', KEYS[4], name)
    redis.call('DECRBY', KEYS[5], size)
end
local function remove(name)
    forget(name)
    return redis.call('DEL', prefix .. ':' .. name)
end
"""

_GET: Final = """
local found = {}
for i = 3, #ARGV do
    local value = redis.call('GET', ARGV[1] .. ':' .. ARGV[i])
    found[i - 2] = value
    if value then
        -- Where the memory is full these fail, and the answer is good all the same.
        redis.pcall('ZADD', KEYS[1], 'XX', ARGV[2], ARGV[i])
        redis.pcall('HINCRBY', KEYS[4], ARGV[i], 1)
    end
end
return found
"""
"""ARGV: prefix, now, then the names."""

_PUT: Final = (
    _REMOVE_ONE
    + """
local name, expires, now = ARGV[2], ARGV[4], ARGV[6]
-- First, since Redis checks the memory only before a script's first write.
redis.call('SET', prefix .. ':' .. name, ARGV[3], 'PXAT', math.floor(1000 * tonumber(expires)))
local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 20)
for _, other in ipairs(ended) do if other ~= name then remove(other) end end
forget(name)
redis.call('ZADD', KEYS[1], now, name)
redis.call('ZADD', KEYS[2], ARGV[5], name)
redis.call('ZADD', KEYS[3], expires, name)
if ARGV[9] ~= '0' then redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[9], '*', 'name', name) end
local bytes = redis.call('INCRBY', KEYS[5], ARGV[5])
while bytes > tonumber(ARGV[7]) or redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[8]) do
    local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
    if not oldest or oldest == name then break end
    remove(oldest)
    bytes = tonumber(redis.call('GET', KEYS[5]))
end
"""
)
"""ARGV: prefix, name, value, expires, size, now, most bytes, most entries, most questions.

Times are in Unix seconds; the last argument is 0 for an entry without a question.
"""

_REMOVE: Final = (
    _REMOVE_ONE
    + """
local removed = 0
for i = 2, #ARGV do removed = removed + remove(ARGV[i]) end
return removed
"""
)
"""ARGV: prefix, then the names."""


class RedisStore:
    """The entries in one Redis database."""

    def __init__(self, url: str, bounds: Bounds, timeout: float) -> None:
        """Describe the connection; it is made when it is first needed.

        Args:
            url: such as ``redis://localhost:6379/0``; ``rediss`` is encrypted, ``unix`` a socket's path.
            bounds: kept by the entries that this process stores.
            timeout: seconds that one operation may take.

        Raises:
            SettingsError: the package redis is missing, or the URL cannot be read.
        """
        self._bounds = bounds
        self._redis = redis_client(url, "response_cache_store", timeout)
        self._get = self._redis.register_script(_GET)
        self._put = self._redis.register_script(_PUT)
        self._remove = self._redis.register_script(_REMOVE)
        self._reads = GatheredReads(self._get_all)

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """See :meth:`galley.cache.store.Store.get`."""
        now = time.time()
        found = await self._reads.get([key.hex() for key in keys])
        return [
            _unless_expired(unpack(data, key), now) if data else None
            for key, data in zip(keys, found, strict=True)
        ]

    async def _get_all(self, names: Sequence[str]) -> list[bytes | None]:
        with _as_store_errors():
            found: list[bytes | None] = await self._get(
                keys=_INDEX, args=[_PREFIX, repr(time.time()), *names]
            )
        return found

    async def put(self, entry: Entry) -> None:
        """See :meth:`galley.cache.store.Store.put`."""
        data = pack(entry)
        size = len(data) + OVERHEAD_BYTES
        now = time.time()
        if entry.expires <= now or size > self._bounds.bytes:
            return
        times = (repr(entry.expires), size, repr(now))
        questions = self._bounds.questions if entry.question else 0
        bounds = (self._bounds.bytes, self._bounds.entries, questions)
        with _as_store_errors():
            await self._put(keys=_INDEX, args=[_PREFIX, entry.key.hex(), data, *times, *bounds])

    async def follow(self, place: str, most: int) -> tuple[list[Entry], str, bool]:
        """See :meth:`galley.cache.store.Store.follow`."""
        with _as_store_errors():
            begin = f"({place}" if place else "-"
            questions = await self._redis.xrange(_QUESTIONS, begin, "+", count=most)
            if not questions:
                return [], place, False
            names = [fields[b"name"].decode() for _, fields in questions]
            values = await self._redis.mget([f"{_PREFIX}:{name}" for name in names])
        found = [
            unpack(data, bytes.fromhex(name)) if data else None
            for name, data in zip(names, values, strict=True)
        ]
        after = questions[-1][0].decode()
        return [entry for entry in found if entry is not None], after, len(questions) == most

    async def find(self, selection: Selection, most: int) -> list[Kept]:
        """See :meth:`galley.cache.store.Store.find`."""
        kept: list[Kept] = []
        with _as_store_errors():
            begin = 0
            while len(kept) < most:
                used = await self._redis.zrevrange(
                    _USED, begin, begin + _SCANNED - 1, withscores=True
                )
                if not used:
                    break
                begin += len(used)
                kept += await self._kept([(name.decode(), when) for name, when in used], selection)
        return kept[:most]

    async def _kept(self, used: "Sequence[tuple[str, float]]", selection: Selection) -> list[Kept]:
        names = [name for name, _ in used]
        values = await self._redis.mget([f"{_PREFIX}:{name}" for name in names])
        hits = await self._redis.hmget(_HITS, names)
        kept = []
        for (name, when), data, count in zip(used, values, hits, strict=True):
            entry = (
                _unless_expired(unpack(data, bytes.fromhex(name)), time.time()) if data else None
            )
            if entry is not None and selection.has(entry):
                kept.append(Kept(entry, len(data) + OVERHEAD_BYTES, when, int(count or 0)))
        return kept

    async def remove(self, selection: Selection) -> int:
        """See :meth:`galley.cache.store.Store.remove`."""
        removed = 0
        with _as_store_errors():
            names = [name.decode() for name in await self._redis.zrange(_USED, 0, -1)]
            for begin in range(0, len(names), _SCANNED):
                some = [(name, 0.0) for name in names[begin : begin + _SCANNED]]
                chosen = [kept.entry.key.hex() for kept in await self._kept(some, selection)]
                if chosen:
                    removed += await self._remove(keys=_INDEX, args=[_PREFIX, *chosen])
        return removed

    async def size(self) -> Size:
        """See :meth:`galley.cache.store.Store.size`."""
        with _as_store_errors():
            entries = await self._redis.zcard(_USED)
            return Size(entries, int(await self._redis.get(_TOTAL) or 0))

    async def close(self) -> None:
        """See :meth:`galley.cache.store.Store.close`."""
        await self._reads.close()
        await self._redis.aclose()


def _unless_expired(entry: Entry | None, now: float) -> Entry | None:
    return entry if entry is not None and entry.expires > now else None


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Raise the client's errors as StoreError."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(f"Redis: {error}") from error
