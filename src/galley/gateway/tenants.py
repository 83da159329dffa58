"""The table of API keys, and the limits and usage of each tenant."""

import hmac
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, get_args

from galley.errors import RateLimited, RequestError, SettingsError
from galley.gateway.key_file import (
    KeyTable,
    Tenant,
    digest,
    plain_table,
    read_key_file,
)
from galley.gateway.rates import Bucket, LastMinute
from galley.observe.tally import Countable
from galley.settings.cache import CacheMode, check_mode
from galley.settings.config import Settings

log = logging.getLogger("galley.tenants")

ANONYMOUS: Final = Tenant()
"""The tenant of requests without a key."""

_CHECK_SECONDS: Final = 1.0
_RECENT: Final = 0.2
"""Weight of the latest request in the mean of their durations."""


class Account:
    """One tenant's usage and remaining limits. For use in one event loop.

    Attributes:
        tenant: the tenant as it is in the key file now.
        running: requests that have begun and not ended.
        requests, tokens: remainder of the limits per minute; None without a limit.
        recent_requests, recent_tokens: requests and tokens of the last minute.
    """

    def __init__(self, tenant: Tenant, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an unused account; ``clock`` returns seconds and never goes back."""
        self._clock = clock
        self._mean_seconds = 1.0
        self.running = 0
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.recent_requests = LastMinute()
        self.recent_tokens = LastMinute()
        self.update(tenant)

    def update(self, tenant: Tenant) -> None:
        """Apply a tenant's changed limits at once; past usage still counts."""
        now = self._clock()
        self.tenant = tenant
        self.requests = _bucket(self.requests, tenant.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, tenant.tokens_per_minute, now)

    def check(self) -> None:
        """Check whether a request may begin; call this before any work on it.

        Raises:
            RateLimited: too many requests are running, or have begun in the last minute.
        """
        now = self._clock()
        tenant = self.tenant
        if tenant.concurrency is not None and self.running >= tenant.concurrency:
            raise RateLimited(
                f"{self._whose} is allowed {tenant.concurrency} concurrent requests, and has "
                f"{self.running}",
                limit="concurrency",
                retry_after=self._mean_seconds / tenant.concurrency,
            )
        if self.requests is not None and (wait := self.requests.wait(1, now)):
            raise RateLimited(
                f"{self._whose} may send {self.requests.limit} requests per minute; retry in "
                f"{wait:.1f} s",
                limit="requests",
                retry_after=wait,
            )

    def enter(self) -> float:
        """Count a request that begins; return its start for :meth:`leave`. Raises as in :meth:`check`."""
        self.check()
        now = self._clock()
        if self.requests is not None:
            self.requests.spend(1, now)
        self.recent_requests.add(1, now)
        self.running += 1
        return now

    def leave(self, began: float) -> None:
        """Count the end of a request that began at ``began``."""
        self.running -= 1
        self._mean_seconds += _RECENT * (self._clock() - began - self._mean_seconds)

    def reserve(self, tokens: int) -> None:
        """Reserve tokens for a request; 0 only checks that the limit is not already exceeded.

        Raises:
            RequestError: ``tokens`` exceeds the limit per minute.
            RateLimited: ``tokens`` exceeds what is left of the limit.
        """
        bucket, now = self.tokens, self._clock()
        if bucket is None:
            return
        if tokens > bucket.limit:
            raise RequestError(
                f"prompt and max_tokens together need {tokens} tokens; {self._whose} may use "
                f"{bucket.limit} per minute",
                param="max_tokens",
                code="tokens_per_minute_exceeded",
            )
        if wait := bucket.wait(tokens, now):
            raise RateLimited(
                f"{self._whose} may use {bucket.limit} tokens per minute; {max(0, int(bucket.left(now)))} "
                f"are left, this request needs {tokens} and fits in {wait:.1f} s",
                limit="tokens",
                retry_after=wait,
            )
        bucket.spend(tokens, now)

    def spend(self, tokens: int) -> None:
        """Charge tokens in addition to a reservation; a negative number returns part of a reservation."""
        if self.tokens is not None and tokens:
            self.tokens.spend(tokens, self._clock())

    def use(self, tokens: int, now: float | None = None) -> None:
        """Count tokens of the last minute; ``now``: monotonic seconds, if the caller has read the clock."""
        self.recent_tokens.add(tokens, now)

    def count(self, counter: Countable, amount: float) -> None:
        """Count usage in one of the tenant's metrics."""
        counter.inc(amount)

    @property
    def _whose(self) -> str:
        return f"tenant {self.tenant.name!r}"


class Tenants:
    """The table of accepted keys, held as SHA-256 digests only, and an account for each tenant.

    The key file is read again when it has changed, which is checked at most once a second. Without any
    key, everybody may use the server, on one account.
    """

    def __init__(
        self,
        given: KeyTable,
        *,
        file: str = "",
        admin_keys: Iterable[str] = (),
        cache_modes: Collection[CacheMode] = get_args(CacheMode),
    ) -> None:
        """Create the table as :meth:`load` does.

        Args:
            given: keys in addition to those in ``file``.
            file: the key file; "": there is none.
            admin_keys: keys of the admin routes.
            cache_modes: the modes of the response cache that a tenant may have.
        """
        self._given = given
        self._cache_modes = cache_modes
        self._file = file
        self._admin = tuple(digest(key) for key in admin_keys)
        self._accounts: dict[str, Account] = {}
        self._seen: tuple[int, int, int] | None = None
        self._checked = time.monotonic()
        self.anonymous = Account(ANONYMOUS)
        self._read()

    @classmethod
    def load(cls, settings: Settings) -> "Tenants":
        """Create the table from the settings ``api_key``, ``api_key_file`` and ``admin_key``.

        Raises:
            SettingsError: the file cannot be read or has an invalid line, a key could not be sent, or a
                tenant's response cache is one that the server does not have.
        """
        plain_table(settings.admin_key, "admin_key")
        return cls(
            plain_table(settings.api_key, "api_key"),
            file=settings.api_key_file,
            admin_keys=settings.admin_key,
            cache_modes=settings.cache_modes,
        )

    def __bool__(self) -> bool:
        """Return whether a key is required."""
        return bool(self._table)

    @property
    def accounts(self) -> list[Account]:
        """The accounts of the tenants, by name; the one shared account if no key is required."""
        self._reload_if_changed()
        names = sorted({account.tenant.name for _, account in self._table})
        return [self._accounts[name] for name in names] or [self.anonymous]

    @property
    def has_admin(self) -> bool:
        """Whether any key gives access to the admin routes."""
        return bool(self._admin) or any(account.tenant.admin for _, account in self._table)

    def identify(self, presented: str) -> Account | None:
        """Return the account of the key ``presented``, or ``None`` if it is unknown.

        This compares it with every key in full, so the time taken reveals nothing.
        """
        self._reload_if_changed()
        hashed = digest(presented)
        found = None
        for known, account in self._table:
            if hmac.compare_digest(hashed, known):
                found = account
        return found

    def is_admin(self, presented: str) -> bool:
        """Return whether ``presented`` is an admin key, or a key of a tenant with ``admin: true``."""
        hashed = digest(presented)
        found = False
        for known in self._admin:
            found |= hmac.compare_digest(hashed, known)
        account = self.identify(presented)
        return found or (account is not None and account.tenant.admin)

    def reload(self) -> bool:
        """Read the key file again and return whether it succeeded.

        If not, the reason is logged and nothing changes.
        """
        if not self._file:
            return True
        try:
            self._read()
        except SettingsError as error:
            log.error("the keys are unchanged: %s", error)
            return False
        log.info("api_key_file %s: %d keys", self._file, len(self._table))
        return True

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if self._file and now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            if self._seen != _state_of(self._file):
                self.reload()

    def _read(self) -> None:
        # Before reading the file, so that a change during the read causes another read.
        self._seen = _state_of(self._file) if self._file else None
        table = dict(self._given)
        if self._file:
            for key, tenant in read_key_file(self._file).items():
                if tenant.response_cache is not None:
                    where = f"api_key_file {self._file}: response_cache of tenant {tenant.name!r}"
                    check_mode(tenant.response_cache, self._cache_modes, where)
                name = table.setdefault(key, tenant).name
                if name != tenant.name:
                    raise SettingsError(
                        f"api_key_file {self._file}: the key of {tenant.name!r} is also in api_key"
                    )
        for tenant in table.values():
            if tenant.name in self._accounts:
                self._accounts[tenant.name].update(tenant)
            else:
                self._accounts[tenant.name] = Account(tenant)
        self._table = [(key, self._accounts[tenant.name]) for key, tenant in table.items()]


def _bucket(bucket: Bucket | None, limit: int | None, now: float) -> Bucket | None:
    if bucket is None or limit is None:
        return None if limit is None else Bucket(limit, now)
    bucket.resize(limit, now)
    return bucket


def _state_of(path: str) -> tuple[int, int, int] | None:
    """Return the file's modification time, size and inode, to detect changes; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
