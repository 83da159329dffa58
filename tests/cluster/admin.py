"""What an administrator sees of the replicas of a server's only model."""

from typing import Any, Final

import httpx

from tests.server.serving import Server

ADMIN_KEY: Final = "sk-admin"
ADMIN: Final = {"Authorization": f"Bearer {ADMIN_KEY}"}


def replicas(server: Server) -> dict[str, dict[str, Any]]:
    """Return the status of each replica by name."""
    answer = httpx.get(f"{server.url}/admin/replicas", headers=ADMIN).json()
    return {one["name"]: one for one in answer["models"][0]["replicas"]}
