"""Key files for tests, and requests with their keys."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx

from tests.server.serving import Server


class KeyFile:
    """Tenants by name; the key of each is ``sk-NAME`` unless others are given."""

    def __init__(self, path: Path, **tenants: dict[str, Any]) -> None:
        self.path = path
        self.tenants = tenants
        self.write()

    def write(self) -> None:
        """Replace the file atomically, as an operator should."""
        entries = [
            {"name": name, "key_sha256": [hashed(key) for key in keys_of(name, tenant)], **tenant}
            for name, tenant in self.tenants.items()
        ]
        for entry in entries:
            entry.pop("keys", None)
        new = self.path.with_suffix(".new")
        # JSON is valid YAML; the reader looks for tenants at the start of a line.
        new.write_text(f"tenants: {json.dumps(entries)}\n")
        os.replace(new, self.path)


def keys_of(name: str, tenant: dict[str, Any]) -> list[str]:
    """Return all keys of a tenant."""
    keys: list[str] = tenant.get("keys", [key_of(name)])
    return keys


def key_of(name: str) -> str:
    """Return a tenant's key."""
    return f"sk-{name}"


def hashed(key: str) -> str:
    """Return the hash of a key as in the file."""
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key: str) -> dict[str, str]:
    """Return the header that presents a key."""
    return {"Authorization": f"Bearer {key}"}


def complete(server: Server, name: str, prompt: list[int], **fields: Any) -> httpx.Response:
    """Send a tenant's completion request of token ids."""
    body = {"model": "tiny", "prompt": prompt, "ignore_eos": True, "temperature": 0, **fields}
    return httpx.post(
        f"{server.url}/v1/completions", json=body, headers=bearer(key_of(name)), timeout=60
    )


def limits_of(server: Server, name: str) -> dict[str, str]:
    """Return the rate-limit headers of a tenant's answer."""
    answer = httpx.get(f"{server.url}/v1/models", headers=bearer(key_of(name)))
    assert answer.status_code == 200
    prefix = "x-ratelimit-"
    return {
        name.removeprefix(prefix): value
        for name, value in answer.headers.items()
        if name.startswith(prefix)
    }
