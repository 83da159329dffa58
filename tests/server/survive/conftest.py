"""A greedy stream runs alongside every test of this folder and must not change by a byte."""

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
    """The text of the neighbour's stream when it runs alone."""
    return alone(http)


@pytest.fixture(autouse=True)
def neighbour(server: Server, expected: str) -> Iterator[Neighbour]:
    """Run the stream alongside a test; modules whose tests stop the server override this fixture."""
    with Neighbour(server, expected) as running:
        yield running
