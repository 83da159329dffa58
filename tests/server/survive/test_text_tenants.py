"""Competing tenants' text work: one tenant's slow schemas do not delay another's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import CONTEXT
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.neighbor import Neighbor, alone
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_text_tenants")

SECONDS = 3
PRIMES = (9973, 9967, 9949, 9941)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    there = tmp_path_factory.mktemp("server")
    KeyFile(there / "keys.yaml", free={}, heavy={}, light={})
    with Server(
        model,
        there / "log",
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        text_seconds=SECONDS,
        api_key_file=there / "keys.yaml",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    with server.client(headers=bearer(key_of("free"))) as client:
        return alone(client)


@pytest.fixture(autouse=True)
def neighbor(server: Server, expected: str) -> Iterator[Neighbor]:
    with Neighbor(server, expected, **bearer(key_of("free"))) as running:
        yield running


def constrained(http: httpx.Client, schema: dict[str, Any]) -> httpx.Response:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "guided_json": schema}
    return http.post("/v1/completions", json=body)


def slow(title: str) -> dict[str, Any]:
    factors = [{"type": "integer", "multipleOf": prime} for prime in PRIMES]
    return {"title": title, "allOf": factors}


def test_one_tenants_slow_schemas_leave_another_its_turn(server: Server) -> None:
    with (
        server.client(headers=bearer(key_of("heavy"))) as heavy,
        server.client(headers=bearer(key_of("light"))) as light,
        ThreadPoolExecutor(2) as pool,
    ):
        sent = [pool.submit(constrained, heavy, slow(f"{number}")) for number in range(2)]
        until(lambda: "its job was guided_json" in server.log)
        assert not all(one.done() for one in sent)
        quick = {
            "type": "object",
            "properties": {"a": {"const": "x"}},
            "additionalProperties": False,
        }
        assert constrained(light, quick).status_code == 200
        large = light.post("/tokenize", json={"prompt": "hello " * 20_000})
        assert large.status_code == 200, large.text
        errors = [error_of(one.result()) for one in sent]
        assert all("longer than 3 s" in error["message"] for error in errors)
        # A schema known to take too long is refused again without work.
        done = server.log.count("its job was guided_json")
        assert error_of(constrained(heavy, slow("1"))) == errors[1]
        assert server.log.count("its job was guided_json") == done
