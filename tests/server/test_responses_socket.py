"""Responses over a WebSocket, and compaction, from the openai SDK and a plain client."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from galley.protocols.openai.responses.connection import (
    MOST_AT_A_TIME,
    MOST_INVALID,
    MOST_LANES,
    MOST_UNFINISHED,
)
from galley.protocols.openai.responses.summaries import content_of, summary_of
from tests.missing import without
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.serving import Server, until
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_responses_socket")

BRIEF: dict[str, Any] = {"max_output_tokens": 12, "temperature": 0}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
ENDS = ("response.completed", "response.incomplete", "error")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    return KeyFile(file, a={}, b={}, slow={"requests_per_minute": 2}, leaving={})


@pytest.fixture(scope="module")
def server(keys: KeyFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=1024)
    log = tmp_path_factory.mktemp("server") / "log"
    flags: dict[str, Any] = {"kv_cache_tokens": 16384, "threads": 1, "max_body_bytes": 200_000}
    with Server(folder, log, api_key_file=keys.path, **flags) as running:
        yield running


@pytest.fixture
def sdk(server: Server) -> Iterator[OpenAI]:
    with server.openai(key_of("a")) as client:
        yield client


class Client:
    """A plain client, connected on entry."""

    def __init__(self, server: Server, tenant: str = "a", **headers: str) -> None:
        self._url = f"ws://127.0.0.1:{server.port}/v1/responses"
        self._headers = bearer(key_of(tenant)) | headers
        self.socket: ClientConnection

    def __enter__(self) -> "Client":
        self.socket = connect(self._url, additional_headers=self._headers, close_timeout=1)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, **fields: Any) -> None:
        """Send a ``response.create``, unless ``type`` says otherwise."""
        self.socket.send(json.dumps({"type": "response.create", **BRIEF, **fields}))

    def event(self) -> dict[str, Any]:
        """Return the next event, which has the SDK's form."""
        event: dict[str, Any] = json.loads(self.socket.recv(timeout=30))
        EVENT.validate_python(event)
        return event

    def end(self) -> dict[str, Any]:
        """Return the event that ends the next answer to end."""
        while (event := self.event())["type"] not in ENDS:
            pass
        return event

    def answer(self, **fields: Any) -> dict[str, Any]:
        """Return the response to a request."""
        self.send(**fields)
        event = self.end()
        assert "response" in event, event
        response: dict[str, Any] = event["response"]
        return response

    def error(self, **fields: Any) -> dict[str, Any]:
        """Return the error event for a request."""
        self.send(**fields)
        event = self.end()
        assert event["type"] == "error", event
        return event


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as connected:
        yield connected


def closed_with(client: Client) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        client.event()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def text_of(response: dict[str, Any]) -> list[Any]:
    return [item.get("content") for item in response["output"]]


def test_the_sdk_gets_the_events_that_a_stream_has(sdk: OpenAI) -> None:
    params: dict[str, Any] = {"model": "calling", "input": "Who sat on the mat?", **BRIEF}
    streamed = list(sdk.responses.create(stream=True, **params))
    with sdk.responses.connect() as connection:
        for _ in range(2):
            connection.response.create(**params)
            received = []
            for event in connection:
                received.append(event)
                if event.type in ENDS:
                    break
            # A delta has all text since the last one, so their number varies.
            kinds = [kind for kind, _ in groupby(event.type for event in received)]
            assert kinds == [kind for kind, _ in groupby(event.type for event in streamed)]
            numbers = [getattr(event, "sequence_number", None) for event in received]
            assert numbers == list(range(len(received)))
            whole, other = received[-1], streamed[-1]
            assert hasattr(whole, "response")
            assert hasattr(other, "response")
            assert whole.response.output_text == other.response.output_text
            assert whole.response.id != other.response.id


def test_a_conversation_goes_on_without_being_stored(client: Client, server: Server) -> None:
    first = client.answer(input="Who sat on the mat?", store=False)
    again = {"input": "And then?", "store": False, "previous_response_id": first["id"]}
    second = client.answer(**again)
    assert second["previous_response_id"] == first["id"]
    assert not second["store"]
    said = [{"role": "user", "content": "Who sat on the mat?"}]
    said += [
        {"role": "assistant", "content": part["text"]} for part in first["output"][0]["content"]
    ]
    said += [{"role": "user", "content": "And then?"}]
    by_post = httpx.post(
        server.url + "/v1/responses",
        json={"input": said, **BRIEF},
        headers=bearer(key_of("a")),
    ).json()
    assert second["usage"]["input_tokens"] == by_post["usage"]["input_tokens"]
    assert text_of(second)[0][0]["text"] == text_of(by_post)[0][0]["text"]
    # Only a lane's last response is kept.
    assert client.error(**again)["error"]["code"] == "previous_response_not_found"


def test_what_is_not_stored_ends_with_the_connection(server: Server, client: Client) -> None:
    stored = client.answer(input="One.")
    passing = client.answer(input="Two.", store=False)
    with Client(server) as other:
        again = other.error(input="So?", previous_response_id=passing["id"], store=False)
        assert again["status"] == 400
        assert again["error"]["code"] == "previous_response_not_found"
        assert again["error"]["param"] == "previous_response_id"
        assert other.answer(input="Anew.")["output"]
        assert other.answer(input="So?", previous_response_id=stored["id"])["output"]
    with Client(server, "b") as stranger:
        for one in (stored, passing):
            refused = stranger.error(input="So?", previous_response_id=one["id"])
            assert refused["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "failing",
    [
        {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "21"}]},
        {"input": "So?", "temperature": -1},
        {"input": "So?", "model": "unknown"},
        {"input": "So?", "unknown": 1},
    ],
)
def test_a_failed_request_ends_what_it_continued(client: Client, failing: dict[str, Any]) -> None:
    first = client.answer(input="Remember: ember.", store=False)
    assert client.error(previous_response_id=first["id"], **failing)["status"] in (400, 404)
    again = client.error(input="So?", previous_response_id=first["id"])
    assert again["error"]["code"] == "previous_response_not_found"


def test_lanes_are_answered_together_and_each_in_order(client: Client) -> None:
    lanes = ["left", "right", None]
    for turn in range(2):
        for lane in lanes:
            named = {} if lane is None else {"stream_id": lane}
            most = 20 if turn else 300
            about: dict[str, Any] = {"metadata": {"turn": str(turn)}, "max_output_tokens": most}
            client.send(input=f"Turn {turn}.", **about, **named)
    events: list[dict[str, Any]] = []
    while sum(event["type"] in ENDS for event in events) < 6:
        events.append(client.event())
    for lane in lanes:
        own = [event for event in events if event.get("stream_id") == lane]
        turns = [event["response"]["metadata"]["turn"] for event in own if "response" in event]
        assert turns == sorted(turns)
        assert {event["type"] for event in own[-1:]} <= set(ENDS)
        first_end = next(n for n, event in enumerate(own) if event["type"] in ENDS)
        assert [event["sequence_number"] for event in own[: first_end + 1]] == list(
            range(first_end + 1)
        )
    first_end = next(n for n, event in enumerate(events) if event["type"] in ENDS)
    begun = {e.get("stream_id") for e in events[:first_end] if e["type"] == "response.created"}
    assert begun == set(lanes)


def test_a_lane_can_go_on_from_another_one(client: Client) -> None:
    root = client.answer(input="Once upon a time", store=False, stream_id="main")
    forks = [
        client.answer(input="So?", previous_response_id=root["id"], store=False, stream_id=lane)
        for lane in ("x", "y")
    ]
    assert text_of(forks[0])[0][0]["text"] == text_of(forks[1])[0][0]["text"]
    assert client.answer(input="So?", previous_response_id=forks[0]["id"])["output"]


def test_a_request_can_be_prepared(client: Client) -> None:
    long = "The cat sat on the mat and looked at the moon. " * 20
    ready = client.answer(input=long, instructions="Be brief.", generate=False, store=False)
    assert ready["output"] == []
    assert ready["status"] == "completed"
    asked = {"instructions": "Be brief.", "previous_response_id": ready["id"], "store": False}
    answer = client.answer(input="Who?", **asked)
    used = answer["usage"]
    assert used["input_tokens_details"]["cached_tokens"] > used["input_tokens"] // 2


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", None),
        (b"\x00", None),
        ('{"type": "session.update"}', "type"),
        ('{"type": "response.steer", "previous_response_id": "resp_1", "input": "x"}', "type"),
        ('{"input": "x"}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "x", "stream": false}', "stream"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "stream_id": ""}', "stream_id"),
        ('{"type": "response.create", "input": "x", "stream_id": 1}', "stream_id"),
        (
            json.dumps({"type": "response.create", "input": "x", "stream_id": "y" * 257}),
            "stream_id",
        ),
        ('{"type": "response.create", "input": "x", "stream_id": "a b"}', "stream_id"),
        ('{"type": "response.create", "input": "x", "generate": "no"}', "generate"),
        ('{"type": "response.create", "input": "x", "metadata": {"a": 1}}', "metadata.a"),
    ],
)
def test_what_is_no_request_is_refused_and_the_next_is_answered(
    client: Client, message: str | bytes, param: str | None
) -> None:
    client.socket.send(message)
    event = client.event()
    assert event["type"] == "error"
    assert event["status"] == 400
    assert event["error"]["param"] == param
    assert (event["error"]["code"] == "invalid_stream_id") is (param == "stream_id")
    assert "stream_id" not in event
    assert client.answer(input="Still there?", stream_id="Z.z_9-" * 42)["output"]


def test_more_requests_than_a_connection_may_have(client: Client) -> None:
    client.send(input="Tell me all.", max_output_tokens=500)
    for _ in range(MOST_UNFINISHED):
        client.send(input="x", max_output_tokens=1)
    ends = [client.end() for _ in range(MOST_UNFINISHED + 1)]
    [refused] = [event for event in ends if event["type"] == "error"]
    assert refused["status"] == 429
    assert refused["error"]["code"] == "queue_full"
    assert int(refused["error"]["headers"]["Retry-After"]) > 0
    for number in range(MOST_LANES):
        client.answer(input="x", stream_id=f"lane-{number}", max_output_tokens=1)
    one_more = client.error(input="x", stream_id="one-more")
    assert one_more["error"]["code"] == "websocket_stream_limit_reached"
    assert one_more["stream_id"] == "one-more"
    assert client.answer(input="x", stream_id="lane-0")["output"]


def test_lanes_wait_for_a_place(client: Client) -> None:
    lanes = [f"lane-{number}" for number in range(MOST_AT_A_TIME + 4)]
    for lane in lanes:
        client.send(input="Tell me all.", max_output_tokens=60, stream_id=lane)
    running, most, answered = set[str](), 0, list[str]()
    while len(answered) < len(lanes):
        event = client.event()
        if event["type"] == "response.created":
            running.add(event["stream_id"])
            most = max(most, len(running))
        elif event["type"] in ENDS:
            assert event["type"] != "error", event
            running.remove(event["stream_id"])
            answered.append(event["stream_id"])
    assert sorted(answered) == sorted(lanes)
    assert most <= MOST_AT_A_TIME


def test_waiting_requests_hold_no_more_than_one_body(client: Client) -> None:
    client.send(input="Tell me all.", max_output_tokens=300)
    client.send(input="x " * 60_000)
    client.send(input="x " * 60_000)
    ends = [client.end() for _ in range(3)]
    codes = [event["error"]["code"] for event in ends if event["type"] == "error"]
    assert sorted(codes) == ["context_length_exceeded", "queue_full"]
    client.send(input="x" * 300_000)
    assert closed_with(client) == 1009


def test_a_client_that_sends_no_requests_is_closed(client: Client) -> None:
    for _ in range(MOST_INVALID):
        client.socket.send("{}")
        assert client.event()["status"] == 400
    assert client.answer(input="x")["output"]
    for _ in range(MOST_INVALID + 1):
        client.socket.send("{}")
    ends = [client.event()["error"]["message"] for _ in range(MOST_INVALID + 1)]
    assert "events in a row were not valid requests" in ends[-1]
    with pytest.raises(ConnectionClosed):
        client.event()


@pytest.mark.parametrize(
    "path", ["/v1/response", "/v1/responses/compact", "/v1/chat/completions", "/"]
)
def test_a_websocket_elsewhere_is_told_where_it_belongs(server: Server, path: str) -> None:
    url = f"ws://127.0.0.1:{server.port}{path}"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers=bearer(key_of("a")))
    assert refused.value.response.status_code == 404
    message = json.loads(refused.value.response.body)["error"]["message"]
    assert path in message
    assert "/v1/responses" in message.partition(";")[2]


def test_limits_of_a_tenant_hold_for_each_request(server: Server) -> None:
    with Client(server, "slow") as client:
        assert client.answer(input="x")["output"]
        assert client.answer(input="x")["output"]
        refused = client.error(input="x")
        assert refused["status"] == 429
        assert refused["error"]["code"] == "rate_limit_exceeded"
        assert int(refused["error"]["headers"]["Retry-After"]) > 0


def test_each_request_has_the_deadline_of_the_handshake(server: Server) -> None:
    with Client(server, **{"X-Request-Timeout": "0.001"}) as client:
        for _ in range(2):
            assert client.error(input="x", max_output_tokens=900)["status"] == 504


def test_each_request_is_counted_and_logged(client: Client, server: Server) -> None:
    key = bearer(key_of("a"))

    def answered(status: int) -> float:
        name = f"galley_requests_total{{endpoint=/v1/responses,status={status}}}"
        return server.metrics(**key).get(name, 0.0)

    before = answered(200), answered(400)
    response = client.answer(input="x")
    client.error(input="x", temperature=-1)
    until(lambda: (answered(200), answered(400)) == (before[0] + 1, before[1] + 1))
    name = response["id"].removeprefix("resp_")
    [line] = [line for line in server.log.splitlines() if name in line]
    assert "WS /v1/responses 200" in line
    assert "tenant=a" in line


def test_a_client_that_leaves_ends_its_requests(server: Server) -> None:
    key = bearer(key_of("a"))
    name = "galley_requests_total{endpoint=/v1/responses,status=499}"
    before = server.metrics(**key).get(name, 0)
    with Client(server) as client:
        client.send(input="Tell me all.", max_output_tokens=900)
        client.send(input="Tell me all.", max_output_tokens=900)
        while client.event()["type"] != "response.output_text.delta":
            pass
    until(lambda: server.metrics(**key)["galley_requests_running"] == 0)
    until(lambda: server.metrics(**key)["galley_requests_waiting"] == 0)
    until(lambda: server.metrics(**key).get(name, 0) == before + 2)


def test_a_removed_key_ends_its_connections(server: Server, keys: KeyFile) -> None:
    with Client(server, "leaving") as client:
        assert client.answer(input="x")["output"]
        del keys.tenants["leaving"]
        keys.write()
        time.sleep(1.1)  # how often the file is looked at
        refused = client.error(input="x")
        assert refused["status"] == 401
        assert closed_with(client) == 1008


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer no"}, 401),
        ({"X-Request-Timeout": "soon"}, 400),
    ],
)
def test_who_may_not_connect_is_told_so(
    server: Server, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused, Client(server, "a", **headers):
        pass
    assert refused.value.response.status_code == status


def test_a_get_without_a_websocket_says_what_it_is_for(server: Server) -> None:
    answer = httpx.get(server.url + "/v1/responses", headers=bearer(key_of("a")))
    assert answer.status_code == 426
    assert answer.headers["upgrade"] == "websocket"


def test_a_server_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "calling", max_position_embeddings=64)
    missing = without(tmp_path, "websockets")
    with Server(folder, tmp_path / "log", environ=missing, threads=1) as server:
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{server.port}/v1/responses")
        assert refused.value.response.status_code == 501
        assert b"galley-inference[speech]" in (refused.value.response.body or b"")


def test_idle_clients_are_closed_and_a_stop_finishes_what_has_begun(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "calling", max_position_embeddings=1024)
    keys = KeyFile(tmp_path / "keys", a={})
    flags: dict[str, Any] = {"threads": 1, "api_key_file": keys.path, "live_idle_seconds": 2}
    with Server(folder, tmp_path / "log", **flags) as server:
        with Client(server) as idle:
            sent = time.monotonic()
            for _ in range(3):
                idle.send(input="Tell me all.", max_output_tokens=300)
            for _ in range(3):
                idle.end()
            answered = time.monotonic()
            assert closed_with(idle) == 1000
            # It is idle from the last answer on, which may be received late.
            assert time.monotonic() - sent > 2 + (answered - sent) / 2
        with Client(server) as client:
            client.send(input="Tell me all.", max_output_tokens=300)
            assert client.event()["type"] == "response.created"
            stopped_while_answering(server, client)


def test_a_connection_ends_at_its_age_after_what_has_begun(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "calling", max_position_embeddings=1024)
    keys = KeyFile(tmp_path / "keys", a={})
    flags: dict[str, Any] = {"api_key_file": keys.path, "responses_websocket_seconds": 2}
    with Server(folder, tmp_path / "log", threads=1, **flags) as server:
        connected = time.monotonic()
        with Client(server) as client:
            ends: list[dict[str, Any]] = []
            while not ends or ends[-1]["type"] != "error":
                assert time.monotonic() - connected < 60, "it is still open"
                with suppress(ConnectionClosed):  # the error came between two requests
                    client.send(input="Tell me all.", max_output_tokens=30)
                ends.append(client.end())
            assert time.monotonic() - connected > 2
            assert ends[-1]["error"]["code"] == "websocket_connection_limit_reached"
            assert "open for 2 seconds" in ends[-1]["error"]["message"]
            assert closed_with(client) == 1000
        # Every request before was answered to its end, and another connection goes on.
        assert len(ends) > 1
        assert all(end["response"]["output"] for end in ends[:-1])
        with Client(server) as client:
            assert client.answer(input="And then?")["output"]


def stopped_while_answering(server: Server, client: Client) -> None:
    with Client(server) as idle:
        server.process.send_signal(signal.SIGTERM)
        assert client.end()["response"]["output"]
        assert closed_with(client) == closed_with(idle) == 1001
    assert server.process.wait(30) == 0


TALK: Any = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "I have noted it."},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "21"},
    {"role": "user", "content": [{"type": "input_text", "text": "Tell support first."}]},
]


def test_a_compacted_conversation_goes_on(sdk: OpenAI, client: Client) -> None:
    made = sdk.responses.compact(model="calling", input=TALK)
    assert made.object == "response.compaction"
    assert made.usage.output_tokens > 0
    *kept, last = [item.model_dump(exclude_unset=True) for item in made.output]
    assert [(item["role"], item["content"][0]["text"]) for item in kept] == [
        ("developer", "Be brief."),
        ("user", "We launch on Tuesday."),
        ("user", "Tell support first."),
    ]
    assert last["type"] == "compaction"
    summary = summary_of(last["encrypted_content"])
    asked = {"role": "user", "content": "So?"}
    over_socket = client.answer(input=[*kept, last, asked], store=False)
    spelled: Any = [
        TALK[0],
        {"role": "user", "content": "We launch on Tuesday.\n\nTell support first."},
        {"role": "assistant", "content": f"Summary of the conversation so far:\n\n{summary}"},
        asked,
    ]
    same = sdk.responses.create(model="calling", input=spelled, **BRIEF)
    assert same.usage
    assert over_socket["usage"]["input_tokens"] == same.usage.input_tokens
    assert text_of(over_socket)[0][0]["text"] == same.output_text


def test_a_call_whose_output_is_still_to_come_outlasts_a_compaction(sdk: OpenAI) -> None:
    """An agent compacts its conversation while its tools run, and then sends what they returned."""
    waiting: list[Any] = [
        {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": f'{{"n":{n}}}'}
        for n in (2, 3)
    ]
    made = sdk.responses.compact(model="calling", input=[*TALK[:5], *waiting])
    items: Any = [item.model_dump(exclude_unset=True) for item in made.output]
    *_, summary, second, third = items
    assert summary["type"] == "compaction"
    kept = [{name: item[name] for name in waiting[0]} for item in (second, third)]
    assert kept == waiting
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "21"}
        for one in waiting
    ]
    goes_on = sdk.responses.create(model="calling", input=[*items, *outputs], **BRIEF)
    said = f"Summary of the conversation so far:\n\n{summary_of(summary['encrypted_content'])}"
    spelled: Any = [*TALK[:2], {"role": "assistant", "content": said}, *waiting, *outputs]
    same = sdk.responses.create(model="calling", input=spelled, **BRIEF)
    assert goes_on.usage
    assert same.usage
    assert goes_on.usage.input_tokens == same.usage.input_tokens
    assert goes_on.output_text == same.output_text
    # Once it has its output, a call is part of what is summarized.
    again = sdk.responses.compact(model="calling", input=[*items, *outputs])
    assert [item.type for item in again.output] == ["message", "message", "compaction"]


def test_a_stored_conversation_is_compacted_by_its_id(sdk: OpenAI) -> None:
    first = sdk.responses.create(model="calling", input="Who sat?", **BRIEF)
    second = sdk.responses.create(
        model="calling", input="And then?", previous_response_id=first.id, **BRIEF
    )
    for more in ({}, {"input": ""}):
        made = sdk.responses.compact(model="calling", previous_response_id=second.id, **more)  # type: ignore[arg-type]
        said = [item.content[0].text for item in made.output if item.type == "message"]  # type: ignore[union-attr]
        assert said == ["Who sat?", "And then?"]
    goes_on: Any = [item.model_dump(exclude_unset=True) for item in made.output]
    stored = sdk.responses.create(
        model="calling", input=[*goes_on, {"role": "user", "content": "So?"}], **BRIEF
    )
    listed = sdk.responses.input_items.list(stored.id, order="asc").data
    assert [item.type for item in listed] == ["message", "message", "compaction", "message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": "calling"}, "input"),
        ({"model": "calling", "input": []}, "input"),
        ({"model": "calling", "input": "x", "stream": True}, "stream"),
        (
            {"model": "calling", "input": "x", "previous_response_id": "resp_x"},
            "previous_response_id",
        ),
        ({"model": "calling", "input": TALK[4:]}, "input"),
    ],
)
def test_what_cannot_be_compacted_is_refused(
    server: Server, body: dict[str, Any], param: str
) -> None:
    answer = httpx.post(
        server.url + "/v1/responses/compact", json=body, headers=bearer(key_of("a"))
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "content", ["gAAAAABo", "", content_of("x")[:-1] + "!", "galley-summary-1._w=="]
)
def test_a_summary_of_another_server_is_refused(sdk: OpenAI, content: str) -> None:
    item: Any = {"type": "compaction", "encrypted_content": content}
    asked: Any = {"role": "user", "content": "So?"}
    with pytest.raises(BadRequestError, match="was not written by"):
        sdk.responses.create(model="calling", input=[item, asked])
