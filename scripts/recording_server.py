"""Run a server on loopback that records clients' requests, and answers enough for them to continue.

Its first answer to a request with a known tool calls that tool, so that the result that the client sends
back is recorded, too.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

Json = dict[str, Any]

SAID: Final = "The cat."
MOST_BODY: Final = 32 * 2**20
KEPT_HEADERS: Final = ("anthropic-version", "anthropic-beta", "content-type", "content-encoding")
"""Headers that could affect an answer."""


class RecordingServer:
    """The server, listening inside its ``with`` block.

    Attributes:
        requests: received requests in order: method, path, headers and JSON body.
    """

    def __init__(self, notes: Path) -> None:
        """Create the server; ``notes`` is a file that clients should read with one of their tools."""
        self.requests: list[Json] = []
        recorder = self

        class Handler(_Handler):
            server_requests = recorder.requests
            calls = _calls(notes)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _calls(notes: Path) -> dict[str, Json]:
    """Arguments of the tools that known clients offer."""
    return {
        "Read": {"file_path": str(notes)},
        "read": {"filePath": str(notes)},
        "exec_command": {"cmd": f"cat {notes}"},
        "shell": {"command": ["cat", str(notes)]},
        "shell_command": {"command": f"cat {notes}"},
        "get_weather": {"city": "Paris"},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_requests: list[Json]
    calls: dict[str, Json]

    def log_message(self, *_: Any) -> None:
        """Log nothing: the requests are recorded."""

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._keep(None)
        if self.path.partition("?")[0] == "/v1/models":
            card = {"id": "recorded", "object": "model", "created": 1, "owned_by": "galley"}
            self._send_json({"object": "list", "data": [card]})
        else:
            self._send_json({"error": {"message": "not here"}}, 404)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > MOST_BODY:
            self._send_json({"error": {"message": "too large"}}, 413)
            return
        received = json.loads(self.rfile.read(length) or b"{}")
        self._keep(received)
        path = self.path.partition("?")[0]
        call = self._call(received)
        if path == "/v1/messages/count_tokens":
            self._send_json({"input_tokens": 10})
        elif path == "/v1/messages":
            self._answer(received, _message(call), _message_events(call))
        elif path == "/v1/responses":
            self._answer(received, _response(call), _response_events(call))
        elif path == "/v1/chat/completions":
            self._answer(received, _completion(call), _completion_chunks(call), done=True)
        elif path == "/api/chat":
            self._send_json(_ollama(call))
        else:
            self._send_json({"error": {"message": "not here"}}, 404)

    def _keep(self, received: Json | None) -> None:
        headers = {k.lower(): v for k, v in self.headers.items() if k.lower() in KEPT_HEADERS}
        request = {"method": self.command, "path": self.path, "headers": headers}
        self.server_requests.append(request | ({} if received is None else {"body": received}))

    def _call(self, received: Json) -> tuple[str, Json] | None:
        """Return a call of a tool that the request offers, unless the conversation already has one."""
        turns = json.dumps(received.get("messages") or received.get("input") or [])
        called = ("tool_use_id", "tool_call_id", "function_call_output", '"role": "tool"')
        if any(sign in turns for sign in called):
            return None
        for tool in received.get("tools") or []:
            name = tool.get("name") or tool.get("function", {}).get("name")
            if name in self.calls:
                return name, self.calls[name]
        return None

    def _answer(
        self, received: Json, whole: Json, events: Iterator[Json], *, done: bool = False
    ) -> None:
        if not received.get("stream"):
            self._send_json(whole)
            return
        body = b""
        for event in events:
            name = f"event: {event['type']}\n".encode() if "type" in event else b""
            body += name + b"data: " + json.dumps(event).encode() + b"\n\n"
        self._send(body + (b"data: [DONE]\n\n" if done else b""), "text/event-stream")

    def _send_json(self, value: Json, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _message(call: tuple[str, Json] | None) -> Json:
    block: Json = {"type": "text", "text": SAID}
    if call is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "recorded",
        "content": [block],
        "stop_reason": "end_turn" if call is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 3},
    }


def _message_events(call: tuple[str, Json] | None) -> Iterator[Json]:
    whole = _message(call)
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": thinking}
    delta: Json = {"type": "thinking_delta", "thinking": "Hm."}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    if call is None:
        block: Json = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": SAID}
    else:
        block = {**whole["content"][0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    yield {"type": "content_block_start", "index": 1, "content_block": block}
    yield {"type": "content_block_delta", "index": 1, "delta": delta}
    yield {"type": "content_block_stop", "index": 1}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 3}}
    yield {"type": "message_stop"}


def _response(call: tuple[str, Json] | None, status: str = "completed") -> Json:
    part = {"type": "output_text", "text": SAID, "annotations": [], "logprobs": []}
    item: Json = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    if call is not None:
        arguments = json.dumps(call[1])
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": call[0]}
        item["arguments"] = arguments
    thought = {"type": "reasoning_text", "text": "Hm."}
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [thought]}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "recorded",
        "output": [reasoning, {**item, "status": "completed"}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


def _response_events(call: tuple[str, Json] | None) -> Iterator[Json]:
    whole = _response(call)
    count = 0
    yield {
        "type": "response.created",
        "sequence_number": count,
        "response": {**whole, "status": "in_progress", "output": []},
    }
    for index, item in enumerate(whole["output"]):
        for kind in ("added", "done"):
            count += 1
            yield {
                "type": f"response.output_item.{kind}",
                "sequence_number": count,
                "output_index": index,
                "item": item,
            }
    yield {"type": "response.completed", "sequence_number": count + 1, "response": whole}


def _said(call: tuple[str, Json] | None) -> Json:
    if call is None:
        return {"role": "assistant", "content": SAID}
    function = {"name": call[0], "arguments": json.dumps(call[1])}
    made = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def _completion(call: tuple[str, Json] | None, **changes: Any) -> Json:
    finish = "stop" if call is None else "tool_calls"
    choice = {"index": 0, "message": _said(call), "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "recorded",
        "choices": [choice],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        **changes,
    }


def _completion_chunks(call: tuple[str, Json] | None) -> Iterator[Json]:
    kind = "chat.completion.chunk"
    thinking = {"role": "assistant", "reasoning_content": "Hm."}
    for delta, finish in (
        (thinking, None),
        (_said(call), None),
        ({}, "stop" if call is None else "tool_calls"),
    ):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        yield _completion(call, object=kind, choices=[choice])


def _ollama(call: tuple[str, Json] | None) -> Json:
    message: Json = {"role": "assistant", "content": SAID}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        message = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    return {"model": "recorded", "message": message, "done": True, "done_reason": "stop"}
