"""A small model hub on loopback that implements as much of the hub's API as its library uses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef" * 2 + "01234567"
WEIGHTS = bytes(range(256)) * 49_152  # 12 MiB; the library keeps steps of 10 MiB
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "modeling_evil.py": b"raise SystemExit",
    "consolidated.safetensors": b"twice",
    "onnx/config.json": b"elsewhere",
    "original/model.safetensors": b"elsewhere",
    "8bit/model.safetensors": b"elsewhere",
    "modules.json": b"[]",
    "1_Pooling/config.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "additional/config.json": b"elsewhere",
    "additional_chat_templates_old/rag.jinja": b"elsewhere",
    "a/config.json": b"elsewhere",
    "assistant/model.safetensors": b"elsewhere",
}
FIRST = 1024 * 1024
CUT_AFTER = 11 * 1024 * 1024
WANTED = {name for name in FILES if name.endswith((".json", ".jinja", ".safetensors"))} - {
    "consolidated.safetensors",
    "onnx/config.json",
    "additional/config.json",
    "additional_chat_templates_old/rag.jinja",
    "a/config.json",
    "assistant/model.safetensors",
    "original/model.safetensors",
    "8bit/model.safetensors",
}
REFUSALS = {  # part of the path -> status and error code, as the public hub answers
    "acme/none": (401, "RepoNotFound"),
    "acme/gated": (403, "GatedRepo"),
    "acme/broken": (500, ""),
    "acme/tiny/revision/v9": (404, "RevisionNotFound"),
}


class Hub(ThreadingHTTPServer):
    """A small model hub on loopback that serves ``acme/tiny`` and refuses some others."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.cuts = 0  # this many answers with weights end after CUT_AFTER bytes
        self.closing = threading.Event()
        self.silent = False
        self.hold: threading.Event | None = None  # weights stop after one MiB until it is set

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that disconnect are part of the tests

    def fetched(self) -> list[str]:
        """Return the requested files, in order."""
        gets = (path for method, path, _ in self.requests if method == "GET")
        return [path.split(f"/resolve/{COMMIT}/")[1] for path in gets if "/resolve/" in path]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        path = self.path.split("?")[0]
        refusal = next((REFUSALS[repo] for repo in REFUSALS if repo in path), None)
        if self.server.silent:
            self.server.closing.wait()
        elif refusal is not None:
            self.answer(refusal[0], X_Error_Code=refusal[1])
        elif "/resolve/" in path:
            self.file(path.split(f"/resolve/{COMMIT}/")[1])
        else:
            self.listing(tree="/tree/" in path)

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            if self.server.hold is not None and len(body) > FIRST:
                self.wfile.write(body[:FIRST])
                self.server.hold.wait()
                body = body[FIRST:]
            self.wfile.write(body)

    def listing(self, *, tree: bool) -> None:
        value: Any = [
            {"type": "file", "path": name, "size": len(data), "oid": oid_of(name)}
            for name, data in FILES.items()
        ]
        if not tree:
            names = [{"rfilename": name} for name in FILES]
            value = {"id": "acme/tiny", "sha": COMMIT, "siblings": names}
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def file(self, name: str) -> None:
        body, status = FILES[name], 200
        headers = {"ETag": f'"{oid_of(name)}"', "X_Repo_Commit": COMMIT}
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content_Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            body, status = body[first:], 206
        headers["Content-Length"] = str(len(body))
        if self.command == "GET" and name == "model.safetensors" and self.server.cuts:
            self.server.cuts -= 1
            body = b"" if wanted else body[:CUT_AFTER]
        self.answer(status, body, **headers)


def oid_of(name: str) -> str:
    return f"{list(FILES).index(name):040x}"


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that runs within the block."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
        thread.start()
        yield hub
        hub.closing.set()
        hub.shutdown()
        thread.join()
