"""A greedy stream runs alongside every test of this folder and must not change by a byte."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.neighbor import Neighbor, alone
from tests.server.serving import Server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def expected(http: httpx.Client) -> str:
    """The text of the neighbor's stream when it runs alone."""
    return alone(http)


@pytest.fixture(autouse=True)
def neighbor(server: Server, expected: str) -> Iterator[Neighbor]:
    """Run the stream alongside a test; modules whose tests stop the server override this fixture."""
    with Neighbor(server, expected) as running:
        yield running
