"""Answers that are not read, are read slowly, or are very large."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.conftest import CONTEXT
from tests.server.raw import Raw
from tests.server.serving import Server, events, until
from tests.thorough import unless

pytestmark = pytest.mark.xdist_group("server_front_door_answers")

PLAIN = "/v1/completions"
FINISHED = f"galley_finished_sequences_total{{endpoint={PLAIN},finish_reason="
ASKED = {"model": "tiny", "prompt": "x", "ignore_eos": True, "temperature": 0}
LONG = ASKED | {"n": 16, "logprobs": 20, "max_tokens": 1900}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits two seconds for a client to read."""
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model, log, kv_cache_tokens=4 * CONTEXT, threads=1, send_timeout=2, max_queue=400
    ) as running:
        yield running


def given_up(server: Server) -> float:
    """Return the number of sequences cancelled because the client left or did not read."""
    metrics = server.metrics()
    return sum(metrics.get(f"{FINISHED}{reason}}}", 0) for reason in ("cancelled", "error"))


def clients_of(server: Server) -> set[int]:
    """Return the ports of the connected clients."""
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return {connection.raddr.port for connection in found if connection.raddr}


def read_to_the_end(client: Raw) -> None:
    while client.socket.recv(65536):
        pass


def ask(client: Raw, body: dict[str, object]) -> None:
    content = json.dumps(body).encode()
    client.post(f"Content-Length: {len(content)}", path=PLAIN).send(body=content)


@pytest.mark.parametrize("count", [unless(False, 1), 4])
def test_streams_that_nobody_reads_are_ended(server: Server, count: int) -> None:
    process = psutil.Process(server.process.pid)
    before, ended = process.memory_info().rss, given_up(server)
    clients = [Raw(server, receive_buffer=4096) for _ in range(count)]
    for client in clients:
        ask(client, LONG | {"stream": True})
    until(lambda: given_up(server) >= ended + 16 * len(clients), 60)
    assert process.memory_info().rss - before < 2**28
    for client in clients:
        assert b"[DONE]" not in client.rest()
        client.socket.close()


def test_a_stream_that_is_read_slowly_continues(server: Server) -> None:
    with Raw(server, receive_buffer=4096) as client:
        ask(client, ASKED | {"logprobs": 20, "max_tokens": 1500, "stream": True})
        received, began = bytearray(), time.monotonic()
        while data := client.socket.recv(16_384):
            received += data
            if time.monotonic() - began < 6:
                time.sleep(0.1)
            if b"[DONE]" in data:
                break
    chunks = [json.loads(line[6:]) for line in received.splitlines() if line.startswith(b"data: {")]
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert sum(len(entry["tokens"]) for entry in logprobs if entry) == 1500


def test_an_answer_that_nobody_reads_is_ended(server: Server) -> None:
    """The answer is complete: only the connection remains to be closed."""
    with Raw(server, receive_buffer=4096) as client:
        port = client.socket.getsockname()[1]
        ask(client, LONG | {"max_tokens": 450})  # more than the system buffers
        until(lambda: port in clients_of(server))
        until(lambda: port not in clients_of(server), 120)
        with pytest.raises(ConnectionResetError):
            read_to_the_end(client)


def test_a_large_answer_delays_no_other_request(server: Server, http: httpx.Client) -> None:
    answers: list[httpx.Response] = []

    def ask_for_much() -> None:
        messages = [{"role": "user", "content": "x"}]
        body = {"model": "tiny", "messages": messages, "ignore_eos": True, "max_tokens": 250}
        body |= {"n": 64, "logprobs": True, "top_logprobs": 20}
        answers.append(http.post("/v1/chat/completions", json=body))

    longest = 0.0
    asking = threading.Thread(target=ask_for_much)
    asking.start()
    with server.client() as other:
        while asking.is_alive():
            began = time.monotonic()
            assert other.get("/health").status_code == 200
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.02)
    asking.join()
    [answer] = answers
    assert len(answer.content) > 15 * 2**20
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(64))
    for choice in choices:
        assert [len(e["top_logprobs"]) for e in choice["logprobs"]["content"]] == [20] * 250
    assert longest < 1, longest


def test_a_whole_answer_says_what_its_stream_says(http: httpx.Client) -> None:
    fields = ASKED | {"n": 2, "logprobs": 20, "max_tokens": 700}
    whole = http.post(PLAIN, json=fields).json()["choices"]
    with http.stream("POST", PLAIN, json=fields | {"stream": True}) as stream:
        chunks = [json.loads(event) for event in events(stream) if event != "[DONE]"]
    for index, choice in enumerate(whole):
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert choice["text"] == "".join(part["text"] for part in parts)
        logprobs = [part["logprobs"] for part in parts if part["logprobs"]]
        for name, values in choice["logprobs"].items():
            assert values == [value for part in logprobs for value in part[name]], name
