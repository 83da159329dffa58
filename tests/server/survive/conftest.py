"""Alongside every test of this folder a greedy stream runs that must not change by a byte."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.neighbour import Neighbour, alone
from tests.server.serving import Server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def expected(http: httpx.Client) -> str:
    """What the neighbour's stream says when it is alone."""
    return alone(http)


@pytest.fixture(autouse=True)
def neighbour(server: Server, expected: str) -> Iterator[Neighbour]:
    """Modules whose tests stop the server override it."""
    with Neighbour(server, expected) as running:
        yield running
