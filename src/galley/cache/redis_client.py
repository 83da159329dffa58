"""The client of a Redis or Valkey, and its bounds."""

from typing import Any, Final

from galley.errors import SettingsError, pip_install

CONNECT_SECONDS: Final = 1.0
_MOST_CONNECTIONS: Final = 64


def redis_client(url: str, setting: str, timeout: float) -> Any:
    """Return a client, which connects when it is first needed.

    Args:
        url: such as ``redis://localhost:6379/0``; ``rediss`` is encrypted, ``unix`` a socket's path.
        setting: the setting that has the URL.
        timeout: seconds that one operation may take.

    Raises:
        SettingsError: the package redis is missing, or the URL cannot be read.
    """
    try:
        from redis import asyncio as redis
    except ImportError:
        raise SettingsError(f"{setting} needs the package redis: {pip_install('redis')}") from None
    try:
        # Requests beyond this many at a time wait for a connection.
        pool = redis.BlockingConnectionPool.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=None,
            max_connections=_MOST_CONNECTIONS,
            timeout=timeout,
        )
    except ValueError:
        # Redis's own message has a part of the URL, which may be one of the password.
        raise SettingsError(
            f"{setting} is not the URL of a Redis, such as redis://localhost:6379/0; write special "
            "characters of a password as %XX"
        ) from None
    return redis.Redis.from_pool(pool)
