"""Prompts computed by one server and continued by another, as the gateway does it, and as sidecars do."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.intruders import Slow, check_intruders, ports_of
from tests.cluster.replica import Replica
from tests.cluster.streams import answers
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("cluster")

LEAST = 320
"""Tokens of a prompt from which on the replica computes it."""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text("a secret that all machines have\n")
    return path


class Three:
    """A prefill server, a decode server, and a prefill replica of the latter."""

    def __init__(self, prefill: Server, decode: Server, replica: Replica) -> None:
        self.prefill, self.decode, self.replica = prefill, decode, replica


@pytest.fixture(scope="module")
def three(folder: Path, token: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    logs = tmp_path_factory.mktemp("logs")
    common: dict[str, Any] = {
        "adapter": f"a={folder.parent / 'adapter'}",
        "max_adapters": 4,
        "threads": 1,
        "kv_cache_tokens": 32768,
        "cluster_token_file": token,
    }
    decode = {"role": "decode", "prefill_tokens": LEAST, "gateway_headers": True, **common}
    with (
        Replica(folder, logs / "replica", token, more="--role prefill") as replica,
        Server(folder, logs / "prefill", role="prefill", **common) as one,
        Server(folder, logs / "decode", prefill_replica=replica.address, **decode) as two,
    ):
        yield Three(one, two, replica)


def post(server: Server, body: dict[str, Any], route: str = "completions") -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{route}", json={"model": "tiny", **body}, timeout=60)


def test_a_sidecar_passes_the_parameters_of_one_server_to_the_other(three: Three) -> None:
    ask = {
        "messages": [{"role": "user", "content": "What is the weather in Paris like? " * 6}],
        "max_tokens": 24,
        "seed": 3,
        "temperature": 1.0,
    }
    expected = post(three.prefill, ask, "chat/completions").json()
    before = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    first = post(
        three.prefill, {**ask, "max_tokens": 1, "kv_transfer_params": before}, "chat/completions"
    ).json()
    transfer = first["kv_transfer_params"]
    assert transfer["do_remote_prefill"]
    assert transfer["remote_host"] == "127.0.0.1"
    second = post(three.decode, {**ask, "kv_transfer_params": transfer}, "chat/completions").json()
    assert second["choices"] == expected["choices"]
    found = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == (second["usage"]["prompt_tokens"] - 1) // 16 * 16 > 0
    metrics = three.decode.metrics()
    assert metrics["galley_kv_transfer_hit_tokens_total"] == found
    assert metrics["galley_kv_transfer_fetch_failures_total"] == 0
    assert metrics["galley_kv_transfer_fetched_blocks_total"] == found / 16
    sent = "galley_kv_transfer_sent_blocks_total"
    until(lambda: three.prefill.metrics()[sent] == found / 16)
    until(lambda: three.prefill.metrics()["galley_kv_blocks{state=used}"] == 0)


def test_a_header_names_the_prefill_server(three: Three) -> None:
    ask = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "You know the weather."},
            {"role": "user", "content": "What is it like in Rome? " * 6},
        ],
        "stop": "\n\n",
        "logprobs": True,
        "max_completion_tokens": 24,
        "seed": 3,
    }
    expected = post(three.prefill, ask, "chat/completions").json()
    found = "galley_kv_transfer_hit_tokens_total"
    before = three.decode.metrics()[found]

    def answer(where: str) -> httpx.Response:
        headers = {"x-prefiller-host-port": where}
        url = f"{three.decode.url}/v1/chat/completions"
        return httpx.post(url, json=ask, headers=headers, timeout=60)

    got = answer(three.prefill.url.removeprefix("http://")).json()
    assert got["choices"] == expected["choices"]
    assert got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert three.decode.metrics()[found] > before
    assert answer("127.0.0.1:1").json()["choices"] == expected["choices"]
    error = error_of(answer("192.0.2.7:8000"), 400)
    assert error["param"] == "x-prefiller-host-port"


DECODE = {"do_remote_decode": True}
PREFILL = {"do_remote_prefill": True}
ELSEWHERE = {"remote_host": "10.1.2.3", "remote_port": 80, "remote_block_ids": [0]}


@pytest.mark.parametrize(
    ("role", "params", "body", "what"),
    [
        ("decode", DECODE, {}, "the role of this server is decode"),
        ("decode", PREFILL, {}, "remote_host, remote_port, remote_block_ids"),
        ("decode", PREFILL | DECODE, {}, "exclude each other"),
        ("decode", PREFILL | ELSEWHERE, {}, "kv_peer"),
        ("prefill", PREFILL | ELSEWHERE, {}, "the role of this server is prefill"),
        ("prefill", DECODE, {"stream": True}, "stream: false"),
        ("prefill", DECODE, {"prompt": ["x", "y"]}, "needs one prompt; there are 2"),
    ],
)
def test_what_cannot_be_honored_is_refused_by_name(
    role: str, params: dict[str, Any], body: dict[str, Any], what: str, three: Three
) -> None:
    server = three.prefill if role == "prefill" else three.decode
    answer = post(server, {"prompt": "x", **body, "kv_transfer_params": params})
    error = error_of(answer, 400)
    assert error["param"] == "kv_transfer_params"
    assert what in error["message"]


def test_strangers_learn_nothing_and_keep_nobody_out(three: Three, tmp_path: Path) -> None:
    """At every port other than those of HTTP: of replicas, and of blocks."""
    processes = [one.process.pid for one in (three.prefill, three.decode, three.replica)]
    ports = ports_of(*processes).keys() - {three.prefill.port, three.decode.port}
    assert len(ports) == 3  # a replica, and the blocks of the two that compute prompts
    ask = {"prompt": [9] * (LEAST + 40), "max_tokens": 8, "seed": 1}
    before = three.decode.metrics()
    with Slow(sorted(ports), 70):
        check_intruders(sorted(ports), tmp_path / "trap")
        expected = post(three.prefill, ask).json()["choices"]
        assert post(three.decode, ask).json()["choices"] == expected
    after = three.decode.metrics()
    for name in ("hit_tokens", "fetch_failures"):
        full = f"galley_kv_transfer_{name}_total"
        assert after[full] - before[full] == (LEAST + 32 if name == "hit_tokens" else 0)
    for log in (three.prefill.log, three.decode.log, three.replica.log):
        assert "Traceback" not in log


def test_the_gateway_has_long_prompts_computed_elsewhere(three: Three) -> None:
    def asks(salt: int) -> list[tuple[str, dict[str, Any]]]:
        common = {"stream": True, "max_tokens": 40, "ignore_eos": True, "temperature": 1.0}
        prompts = [[5 + (salt + i + n * 7) % 90 for n in range(400 + 16 * i)] for i in range(6)]
        return [
            (
                "/v1/completions",
                {"model": ("tiny", "tiny:a")[i % 2], "prompt": prompt, "seed": i, **common},
            )
            for i, prompt in enumerate(prompts)
        ]

    expected = asyncio.run(answers(three.prefill.url, asks(0)))
    before = three.decode.metrics()
    assert asyncio.run(answers(three.decode.url, asks(0))) == expected
    after = three.decode.metrics()
    taken = "galley_kv_transfer_hit_tokens_total"
    assert after[taken] - before[taken] == sum((399 + 16 * i) // 16 * 16 for i in range(6))
    # What is cached there is computed nowhere else, and short prompts are not, either.
    short = ("/v1/completions", {"model": "tiny", "prompt": [7] * (LEAST - 1), "stream": True})
    asyncio.run(answers(three.decode.url, [*asks(0), short]))
    assert three.decode.metrics()[taken] == after[taken]

    expected = asyncio.run(answers(three.prefill.url, asks(1)))
    gone = 0

    async def on_piece(length: int) -> None:
        nonlocal gone
        gone += 1
        if gone == 2:
            three.replica.signal(signal.SIGKILL)

    assert asyncio.run(answers(three.decode.url, asks(1), on_piece)) == expected
    expected = asyncio.run(answers(three.prefill.url, asks(2)))
    assert asyncio.run(answers(three.decode.url, asks(2))) == expected
    until(lambda: three.decode.metrics()["galley_kv_blocks{state=used}"] == 0)
