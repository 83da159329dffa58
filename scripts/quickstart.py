"""Implements ``make run``: start the server, show an answer and a call's ticket, serve until Ctrl-C."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from galley.errors import SettingsError
from galley.formats.source import BUNDLED, BUNDLED_EMBED, BUNDLED_SPEECH
from galley.gateway.key_file import digest, read_key_file
from galley.settings.config import Settings

QUESTION: Final = "What is a KV cache?"
TASK: Final = "Write the ticket as JSON."
CALL: Final = Path(__file__).parents[1] / "examples/call.opus"

READY: Final = re.compile(r"chat, speech and embed are ready after .*:(?P<port>\d+)/v1$")
"""The server's output when it can answer."""

BOUNDARY: Final = "part-of-a-form"

Message = dict[str, str]


@dataclass(frozen=True)
class Service:
    """The started server, once it is ready."""

    host: str
    port: int
    key: str | None


def main() -> int:
    """Run the quick start; return the server's exit code."""
    settings = Settings.load({})
    keys = list(settings.api_key)
    if settings.api_key_file:
        keys += plain_keys(Path(settings.api_key_file))
    # Without this, each request's log line would appear in the middle of the answer.
    quiet = {"GALLEY_LOG_LEVEL": "warning", **os.environ}
    models = [f"chat={settings.model or BUNDLED}"]
    models += [f"speech={BUNDLED_SPEECH}", f"embed={BUNDLED_EMBED}"]
    command = [sys.executable, "-m", "galley", "serve", *models]
    server = subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    # Ctrl-C reaches the server, too: it drains and exits, and then this process exits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        for line in server.stdout:
            print(line, end="", flush=True)
            if ready := READY.match(line):
                host = reachable(settings.host)
                show(Service(host, int(ready["port"]), keys[0] if keys else None))
        return server.wait()
    finally:
        server.terminate()
        server.wait()


def plain_keys(file: Path) -> list[str]:
    """Return the keys of a file with plain-text keys; none of a file with hashes."""
    table = read_key_file(str(file))
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if digest(line) in table]


def reachable(host: str) -> str:
    """Return the address at which this machine reaches a server bound to ``host``."""
    any_address = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (no bind)
    return any_address.get(host, host)


def show(service: Service) -> None:
    """Show a question, then a call and its ticket, over HTTP as any client would; then the next steps."""
    try:
        print(f"\n> {QUESTION}\n")
        stream(service, [{"role": "user", "content": QUESTION}])
        print(f"\n\n> {CALL.name}, a recorded call\n", flush=True)
        call = transcript(service)
        print(f"{call}\n\n> {TASK}\n")
        stream(service, [{"role": "system", "content": TASK}, {"role": "user", "content": call}])
    except (OSError, http.client.HTTPException) as error:  # for example on a second Ctrl-C
        print(f"\nthe answer was interrupted: {error}", file=sys.stderr)
        return
    print(where(service), flush=True)


def stream(service: Service, messages: Sequence[Message]) -> None:
    """Print the pieces of an answer as they arrive."""
    for text in answer(service, messages):
        print(text, end="", flush=True)


def answer(service: Service, messages: Sequence[Message]) -> Iterator[str]:
    """Yield the pieces of the answer as the server streams them."""
    body = {"model": "chat", "messages": messages, "temperature": 0, "stream": True}
    for line in post(service, "chat/completions", json.dumps(body).encode(), "application/json"):
        event = line.decode().strip().removeprefix("data: ")
        if event and event != "[DONE]":
            value = json.loads(event)
            if "error" in value:
                raise http.client.HTTPException(value["error"]["message"])
            for choice in value["choices"]:
                yield choice["delta"].get("content") or ""


def transcript(service: Service) -> str:
    """Return the transcript of the recorded call."""
    parts = [
        part(f'name="{name}"', value.encode())
        for name, value in (("model", "speech"), ("response_format", "text"))
    ]
    parts.append(part(f'name="file"; filename="{CALL.name}"', CALL.read_bytes()))
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return post(service, "audio/transcriptions", body, kind).read().decode().strip()


def part(disposition: str, value: bytes) -> bytes:
    """Return one field of a form."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + value + b"\r\n"


def post(service: Service, route: str, body: bytes, kind: str) -> http.client.HTTPResponse:
    """Return a successful response. Raises HTTPException for any other."""
    headers = {"Content-Type": kind}
    if service.key is not None:
        headers["Authorization"] = f"Bearer {service.key}"
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60)
    connection.request("POST", f"/v1/{route}", body, headers)
    response = connection.getresponse()
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status}: {response.read().decode()}")
    return response


def where(service: Service) -> str:
    """Return a description of the next steps."""
    host = f"[{service.host}]" if ":" in service.host else service.host
    base = f"http://{host}:{service.port}"
    key = "" if service.key is None else ' -H "Authorization: Bearer KEY"'
    return f"""

Serving at {base}/v1 (documentation of the API: {base}/docs). Try:

  curl {base}/v1/chat/completions -H "Content-Type: application/json"{key} -d '{{
    "model": "chat",
    "messages": [{{"role": "user", "content": "What is continuous batching?"}}]}}'

  curl {base}/v1/audio/transcriptions{key} -F model=speech -F file=@{shown(CALL)}

  curl {base}/v1/embeddings -H "Content-Type: application/json"{key} -d '{{
    "model": "embed", "input": "What is continuous batching?"}}'

Ctrl-C stops the server.
"""


def shown(file: Path) -> str:
    """Return the path in its shortest form from here."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SettingsError as error:
        sys.exit(f"galley: {error}")
