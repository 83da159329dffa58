"""Checks of the system resources of the server's process: its port, and its limit of open files."""

import socket
from typing import Final

from galley.doctor.findings import Context, Finding

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FEW: Final = 4096
"""Open-file limit below which connections run out before the engine is full."""


def check(context: Context) -> list[Finding]:
    """Check the port and the limit on open files."""
    return [_port(context)] if resource is None else [_port(context), _files()]


def _port(context: Context) -> Finding:
    host, port = context.settings.host, context.settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return Finding(
            check="port",
            level="problem",
            found=f"{host}:{port} cannot be bound: {error.strerror or error}",
            cost="galley serve does not start",
            remedy=f"ss -ltnp 'sport = :{port}' shows which process uses it; choose another --port or "
            "--host",
            figures={"host": host, "port": port},
        )
    return Finding(
        check="port",
        level="ok",
        found=f"{host}:{port} is free",
        figures={"host": host, "port": port},
    )


def _files() -> Finding:
    """Check the hard limit: the server raises the soft one to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEW:
        text = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        return Finding(
            check="open files",
            level="ok",
            found=f"limit of open files: {text}",
            figures={"limit": hard},
        )
    return Finding(
        check="open files",
        level="warning",
        found=f"limit of open files: {hard:,}",
        cost=f"about {max(0, hard - 64) // 2:,} concurrent connections; more get a 503",
        remedy="raise ulimit -Hn, LimitNOFILE= in the systemd unit, or docker run --ulimit nofile=65536",
        figures={"limit": hard},
    )
