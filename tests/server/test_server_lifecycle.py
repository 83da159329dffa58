"""Start, drain and stop, and the requests of clients that disconnect."""

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from galley.server.run import bind
from tests.cli.command import galley
from tests.missing import late_engine, slow_disk
from tests.server.conftest import CONTEXT
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"
LONG: dict[str, Any] = {
    "model": "tiny",
    "prompt": "the cat",
    "ignore_eos": True,
    "max_tokens": 12_000,
}


@contextlib.contextmanager
def small(model: Path, folder: Path, **settings: Any) -> Iterator[Server]:
    defaults = {"kv_cache_tokens": 4 * CONTEXT, "threads": 1}
    with Server(model, folder / "log", **(defaults | settings)) as running:
        yield running


def idle(server: Server) -> bool:
    metrics = server.metrics()
    busy = ("galley_requests_running", "galley_requests_waiting", "galley_kv_blocks{state=used}")
    return not any(metrics[name] for name in busy)


def running(server: Server, count: int) -> bool:
    return server.metrics()["galley_requests_running"] == count


def test_health_answers_while_the_model_loads(model: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    log, environ = tmp_path / "log", late_engine(tmp_path, go)
    with Server(model, log, wait=False, environ=environ, kv_cache_tokens=CONTEXT) as server:
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        ready = httpx.get(f"{server.url}/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "starting"})
        early = httpx.post(server.url + PLAIN, json=LONG)
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) >= 1
        assert early.json()["error"]["code"] == "engine_not_ready"
        go.touch()
        server.wait_for_log("is ready after")
        assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
        phases = [name for name in server.metrics() if name.startswith("galley_startup_phase")]
        assert len(phases) >= 3
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(model: Path, tmp_path: Path, number: int) -> None:
    with small(model, tmp_path) as server:
        [engine] = server.children()
        body = LONG | {"stream": True, "max_tokens": 800}
        with httpx.stream("POST", server.url + PLAIN, json=body, timeout=60) as stream:
            data = events(stream)
            next(data)
            engine.suspend()  # or the stream might end before all requests are sent
            server.process.send_signal(number)
            server.wait_for_log("draining")
            refused = httpx.post(server.url + PLAIN, json=LONG)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert int(refused.headers["retry-after"]) >= 1
            with pytest.raises(openai.InternalServerError):
                server.openai().models.list()
            assert httpx.get(f"{server.url}/ready").status_code == 503
            assert httpx.get(f"{server.url}/health").status_code == 200
            engine.resume()
            received = list(data)
        assert received[-1] == "[DONE]"
        assert json.loads(received[-2])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0
        assert psutil.wait_procs([engine], timeout=10)[1] == []


def test_a_drain_has_an_end(model: Path, tmp_path: Path) -> None:
    with small(model, tmp_path, drain_seconds=0.5) as server:
        engine = server.children()
        with httpx.stream("POST", server.url + PLAIN, json=LONG | {"stream": True}) as stream:
            data = events(stream)
            next(data)
            assert server.stop() == 0
            last = list(data)[-1]
        assert json.loads(last)["error"]["code"] == "draining"
        assert psutil.wait_procs(engine, timeout=10)[1] == []


def test_a_second_signal_stops_at_once(model: Path, tmp_path: Path) -> None:
    with small(model, tmp_path) as server:
        engine = server.children()
        with httpx.stream("POST", server.url + PLAIN, json=LONG | {"stream": True}) as stream:
            data = events(stream)
            next(data)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("draining")
            assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
            with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
                assert "[DONE]" not in list(data)
        assert psutil.wait_procs(engine, timeout=10)[1] == []


@contextlib.contextmanager
def first_start(model: Path, folder: Path, **settings: Any) -> Iterator[Server]:
    """A server that has packed its weights, whose file is complete once ``go`` exists."""
    environ = slow_disk(folder, folder / "go") | {"GALLEY_CACHE_DIR": str(folder / "cache")}
    with small(model, folder, environ=environ, **settings) as server:
        yield server


def packed_files(folder: Path) -> list[str]:
    return [path.name for path in (folder / "cache" / "packed").glob("*.packed")]


def test_a_stopped_server_stores_its_packed_weights_first(model: Path, tmp_path: Path) -> None:
    with first_start(model, tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("waiting for packed weights to be stored")
        assert not packed_files(tmp_path)
        (tmp_path / "go").touch()
        assert server.process.wait(60) == 0
    assert packed_files(tmp_path)


def test_packed_weights_delay_the_stop_for_the_drain_at_most(model: Path, tmp_path: Path) -> None:
    with first_start(model, tmp_path, drain_seconds=0.3) as server:
        assert server.stop(timeout=60) == 0
        server.wait_for_log("drain time is over; packed weights are not stored")
    assert not packed_files(tmp_path)


def test_a_second_signal_does_not_wait_for_packed_weights(model: Path, tmp_path: Path) -> None:
    with first_start(model, tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("waiting for packed weights to be stored")
        assert server.stop() == 128 + signal.SIGTERM


def test_a_killed_server_leaves_no_engine(model: Path, tmp_path: Path) -> None:
    with small(model, tmp_path) as server:
        engine = server.children()
        with httpx.stream("POST", server.url + PLAIN, json=LONG | {"stream": True}) as stream:
            next(events(stream))
            server.process.kill()
            assert psutil.wait_procs(engine, timeout=10)[1] == []


def test_a_signal_during_the_start_stops_it(model: Path, tmp_path: Path) -> None:
    with Server(model, tmp_path / "log", wait=False) as server:
        children = server.children()
        assert server.stop() == 0
        assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_signal_during_a_download_stops_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # accepts connections and never answers
        environ = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
        }
        log = tmp_path / "log"
        with Server("someone/something", log, wait=False, environ=environ) as server:
            connection, _ = hub.accept()
            with connection:
                assert server.stop() == 0


def test_a_port_in_use_is_reported(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = galley("serve", model, "--port", port)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        ended = galley("serve", folder, "--port", 0)
        assert ended.returncode == 1
        assert "cannot start" in ended.stderr
        assert str(folder) in ended.stderr
        assert "Traceback" not in ended.stderr


@contextlib.contextmanager
def sent(server: Server, path: str, body: dict[str, Any]) -> Iterator[None]:
    """A client that sends its request, reads nothing, and disconnects at the end of the block."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", PLAIN])
def test_a_client_that_disconnects_frees_its_blocks(
    server: Server, path: str, stream: bool
) -> None:
    body = LONG | {"stream": stream, "n": 2}
    if "chat" in path:
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "x"}]
    with sent(server, path, body):
        until(lambda: running(server, 2))
    until(lambda: idle(server))
    server.wait_for_log(rf"POST {path} 499 .*finish=unfinished")


def test_a_client_that_disconnects_during_prefill_frees_its_blocks(
    model: Path, tmp_path: Path
) -> None:
    body = LONG | {"prompt": [300] * (CONTEXT - 10), "max_tokens": 9}
    with small(model, tmp_path, max_batch_tokens=2, max_running=2) as server:
        with sent(server, PLAIN, body):
            until(lambda: running(server, 1))
        until(lambda: idle(server))
        server.wait_for_log(f"POST {PLAIN} 499 .* generated=0 finish=unfinished")


def test_queued_requests_are_bounded_and_can_be_cancelled(model: Path, tmp_path: Path) -> None:
    with small(model, tmp_path, max_running=1, max_queue=1) as server, server.client() as http:
        with contextlib.ExitStack() as clients:
            first = clients.enter_context(
                http.stream("POST", PLAIN, json=LONG | {"stream": True, "temperature": 0})
            )
            text = events(first)
            next(text)
            clients.enter_context(http.stream("POST", PLAIN, json=LONG | {"stream": True}))
            until(lambda: server.metrics()["galley_requests_waiting"] == 1)
            with pytest.raises(openai.RateLimitError) as error:
                server.openai().completions.create(model="tiny", prompt="x")
            assert int(error.value.response.headers["retry-after"]) >= 1
            assert (error.value.type, error.value.code) == ("rate_limit_error", "queue_full")
            assert running(server, 1)
        until(lambda: idle(server))
        answer = http.post(PLAIN, json=LONG | {"max_tokens": 2})
        assert answer.status_code == 200


def test_a_client_that_disconnects_while_sending_its_body_is_no_error(server: Server) -> None:
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    server.wait_for_log(rf"POST {PLAIN} 499 \d")
    assert "Traceback" not in server.log


def test_streams_survive_the_death_of_the_engine(model: Path, tmp_path: Path) -> None:
    body = {"model": "tiny", "prompt": "the dog", "ignore_eos": True, "max_tokens": 2000, "seed": 7}
    with small(model, tmp_path) as server, server.client() as http:
        expected = http.post(PLAIN, json=body).json()["choices"][0]["text"]
        texts: list[str] = []

        def listen() -> None:
            with http.stream("POST", PLAIN, json=body | {"stream": True}) as stream:
                received = [json.loads(e) for e in events(stream) if e != "[DONE]"]
                texts.append("".join(event["choices"][0]["text"] for event in received))

        listeners = [threading.Thread(target=listen) for _ in range(4)]
        for listener in listeners:
            listener.start()
        until(lambda: running(server, 4))
        before = server.metrics()["galley_engine_steps_total"]
        for engine in server.children():
            engine.kill()
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        for listener in listeners:
            listener.join(120)
        assert texts == [expected] * 4
        metrics = server.metrics()
        assert metrics["galley_engine_restarts_total"] == 1
        assert metrics["galley_engine_steps_total"] > before


def test_tokens_do_not_wait_for_the_clients_acknowledgment() -> None:
    async def option() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await seen

    assert asyncio.run(option())
