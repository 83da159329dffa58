"""What ``make run`` does: start the server, show one streamed answer, keep serving until Ctrl-C."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from galley.config import Settings
from galley.errors import SettingsError
from galley.server.auth import read_keys

QUESTION: Final = "What is a KV cache?"

READY: Final = re.compile(r"(?P<model>.+) is ready after .*:(?P<port>\d+)/v1$")
"""What the server prints when it can answer."""


@dataclass(frozen=True)
class Service:
    """The server that was started, once it is ready."""

    host: str
    port: int
    model: str
    key: str | None


def main() -> int:
    """Returns the server's exit code."""
    settings = Settings.load({})
    keys = read_keys(settings)
    # A line in the log for each request would fall into the answer shown.
    quiet = {"GALLEY_LOG_LEVEL": "warning", **os.environ}
    command = [sys.executable, "-m", "galley", "serve"]
    server = subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    # Ctrl-C reaches the server, too: it drains and exits, and this process exits with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        for line in server.stdout:
            print(line, end="", flush=True)
            if ready := READY.match(line):
                host = reachable(settings.host)
                show(Service(host, int(ready["port"]), ready["model"], keys[0] if keys else None))
        return server.wait()
    finally:
        server.terminate()
        server.wait()


def reachable(host: str) -> str:
    """How this machine reaches a server that is bound to ``host``."""
    any_address = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (no bind)
    return any_address.get(host, host)


def show(service: Service) -> None:
    """One question, streamed through HTTP as any client would, and what to do next."""
    print(f"\n> {QUESTION}\n", flush=True)
    try:
        for text in answer(service, QUESTION):
            print(text, end="", flush=True)
    except (OSError, http.client.HTTPException) as error:  # a second Ctrl-C, for one
        print(f"\nthe answer broke off: {error}", file=sys.stderr)
        return
    print(where(service), flush=True)


def answer(service: Service, question: str) -> Iterator[str]:
    """The pieces of the answer as the server streams them."""
    body = {
        "model": service.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    if service.key is not None:
        headers["Authorization"] = f"Bearer {service.key}"
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status}: {response.read().decode()}")
    for line in response:
        event = line.decode().strip().removeprefix("data: ")
        if event and event != "[DONE]":
            value = json.loads(event)
            if "error" in value:
                raise http.client.HTTPException(value["error"]["message"])
            for choice in value["choices"]:
                yield choice["delta"].get("content") or ""


def where(service: Service) -> str:
    """What the user can do next."""
    host = f"[{service.host}]" if ":" in service.host else service.host
    base = f"http://{host}:{service.port}"
    key = "" if service.key is None else ' -H "Authorization: Bearer KEY"'
    return f"""

Serving at {base}/v1 (documentation of the API: {base}/docs). Try:

  curl {base}/v1/chat/completions -H "Content-Type: application/json"{key} -d '{{
    "model": "{service.model}",
    "messages": [{{"role": "user", "content": "What is continuous batching?"}}]}}'

Ctrl-C stops the server.
"""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SettingsError as error:
        sys.exit(f"galley: {error}")
