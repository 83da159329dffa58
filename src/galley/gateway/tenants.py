"""Who may ask for how much: the table of keys, and what each tenant uses."""

import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from galley.errors import RateLimited, RequestError, SettingsError
from galley.gateway.key_file import (
    KeyTable,
    Tenant,
    digest,
    plain_table,
    read_key_file,
)
from galley.gateway.rates import Bucket, LastMinute
from galley.settings.config import Settings

log = logging.getLogger("galley.tenants")

ANYBODY: Final = Tenant()
"""Of requests without a key."""

_CHECK_SECONDS: Final = 1.0
_RECENT: Final = 0.2
"""Weight of the latest request in the mean of their durations."""


class Account:
    """What one tenant uses and has left. Belongs to one event loop.

    Attributes:
        tenant: as the key file has it now.
        running: requests that have begun and not ended.
        requests, tokens: what is left of the minute's limits; None without a limit.
        recent_requests, recent_tokens: of the last minute.
    """

    def __init__(self, tenant: Tenant, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is in seconds and never goes back."""
        self._clock = clock
        self._mean_seconds = 1.0
        self.running = 0
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.recent_requests = LastMinute()
        self.recent_tokens = LastMinute()
        self.update(tenant)

    def update(self, tenant: Tenant) -> None:
        """The key file has changed: new limits hold at once, what has been used stays used."""
        now = self._clock()
        self.tenant = tenant
        self.requests = _bucket(self.requests, tenant.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, tenant.tokens_per_minute, now)

    def check(self) -> None:
        """Before anything is done for a request: whether it may begin.

        Raises:
            RateLimited: too many run, or have begun in the last minute.
        """
        now = self._clock()
        tenant = self.tenant
        if tenant.concurrency is not None and self.running >= tenant.concurrency:
            raise RateLimited(
                f"{self._whose} may have {tenant.concurrency} requests running at a time, and has "
                f"{self.running}",
                limit="concurrency",
                retry_after=self._mean_seconds / tenant.concurrency,
            )
        if self.requests is not None and (wait := self.requests.wait(1, now)):
            raise RateLimited(
                f"{self._whose} may send {self.requests.limit} requests per minute; the next fits in "
                f"{wait:.1f} s",
                limit="requests",
                retry_after=wait,
            )

    def enter(self) -> float:
        """A request begins; returns when, for :meth:`leave`. Raises as :meth:`check`."""
        self.check()
        now = self._clock()
        if self.requests is not None:
            self.requests.spend(1, now)
        self.recent_requests.add(1, now)
        self.running += 1
        return now

    def leave(self, began: float) -> None:
        """A request ends that began at ``began``."""
        self.running -= 1
        self._mean_seconds += _RECENT * (self._clock() - began - self._mean_seconds)

    def reserve(self, tokens: int) -> None:
        """Take what a request may need; 0 asks only that no more was used than the limit lets.

        Raises:
            RequestError: it is more than fits a minute, ever.
            RateLimited: it is more than is left of the minute.
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
        """Take tokens beyond what was reserved; a negative number of a reservation is given back."""
        if self.tokens is not None and tokens:
            self.tokens.spend(tokens, self._clock())

    @property
    def _whose(self) -> str:
        return f"tenant {self.tenant.name!r}"


class Tenants:
    """The table of accepted keys, held as SHA-256 digests only, and an account for each tenant.

    The key file is read again when it has changed, which is looked for once a second at most. Without any
    key everybody may use the server, on one account.
    """

    def __init__(self, given: KeyTable, *, file: str = "", admin_keys: Iterable[str] = ()) -> None:
        """As :meth:`load`; ``given`` are the keys beside those of the ``file``."""
        self._given = given
        self._file = file
        self._admin = tuple(digest(key) for key in admin_keys)
        self._accounts: dict[str, Account] = {}
        self._seen: tuple[int, int, int] | None = None
        self._checked = time.monotonic()
        self.anybody = Account(ANYBODY)
        self._read()

    @classmethod
    def load(cls, settings: Settings) -> "Tenants":
        """Those of the settings ``api_key``, ``api_key_file`` and ``admin_key``.

        Raises:
            SettingsError: the file cannot be read or a line of it is wrong, or a key could not be sent.
        """
        plain_table(settings.admin_key, "admin_key")
        return cls(
            plain_table(settings.api_key, "api_key"),
            file=settings.api_key_file,
            admin_keys=settings.admin_key,
        )

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._table)

    @property
    def accounts(self) -> list[Account]:
        """Of the tenants in the table, by name; of everybody where no key is asked for."""
        self._reload_if_changed()
        names = sorted({account.tenant.name for _, account in self._table})
        return [self._accounts[name] for name in names] or [self.anybody]

    @property
    def has_admin(self) -> bool:
        """Whether any key opens the admin routes."""
        return bool(self._admin) or any(account.tenant.admin for _, account in self._table)

    def identify(self, presented: str) -> Account | None:
        """The account of the key that ``presented`` is, or ``None``.

        Compares with every key in full, so the time taken tells nothing.
        """
        self._reload_if_changed()
        hashed = digest(presented)
        found = None
        for known, account in self._table:
            if hmac.compare_digest(hashed, known):
                found = account
        return found

    def is_admin(self, presented: str) -> bool:
        """Whether ``presented`` is an admin key, or a key of a tenant with ``admin: true``."""
        hashed = digest(presented)
        found = False
        for known in self._admin:
            found |= hmac.compare_digest(hashed, known)
        account = self.identify(presented)
        return found or (account is not None and account.tenant.admin)

    def reload(self) -> bool:
        """Read the key file again; whether that went well. If not, the log says why and nothing changes."""
        if not self._file:
            return True
        try:
            self._read()
        except SettingsError as error:
            log.error("the keys stay as they were: %s", error)
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
        # Before the file is read: what changes meanwhile is read again.
        self._seen = _state_of(self._file) if self._file else None
        table = dict(self._given)
        if self._file:
            for key, tenant in read_key_file(self._file).items():
                name = table.setdefault(key, tenant).name
                if name != tenant.name:
                    raise SettingsError(
                        f"api_key_file {self._file}: the key of {tenant.name!r} is also one of api_key"
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
    """Changes with the file's time, size and place on the disk; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
