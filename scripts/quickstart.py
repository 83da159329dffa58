"""What ``make run`` does: start the server, show one streamed answer, keep serving until Ctrl-C."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from galley.config import Settings
from galley.errors import SettingsError

QUESTION = "What is a KV cache?"


def main() -> int:
    """Returns the server's exit code."""
    settings = Settings.load({})
    # A line in the log for each request would fall into the answer shown.
    quiet = {"GALLEY_LOG_LEVEL": "warning", **os.environ}
    server = subprocess.Popen([sys.executable, "-m", "galley", "serve"], env=quiet)
    # Ctrl-C reaches the server, too: it drains and exits, and this process exits with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        if wait_until_ready(settings, server):
            show_an_answer(settings)
        return server.wait()
    finally:
        server.terminate()
        server.wait()


def show_an_answer(settings: Settings) -> None:
    """One question, streamed through HTTP as any client would, and what to do next."""
    print(f"\n> {QUESTION}\n", flush=True)
    for text in answer(settings, QUESTION):
        print(text, end="", flush=True)
    print(where(settings), flush=True)


def wait_until_ready(settings: Settings, server: subprocess.Popen[bytes]) -> bool:
    """False: the server ended instead; it has said why."""
    while server.poll() is None:
        try:
            connection = connect(settings)
            connection.request("GET", "/ready", headers=headers(settings))
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def answer(settings: Settings, question: str) -> Iterator[str]:
    """The pieces of the answer as the server streams them."""
    body = {
        "model": model_name(settings),
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
    }
    connection = connect(settings)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers(settings))
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"the server answered {response.status}: {response.read().decode()}")
    for line in response:
        event = line.decode().strip().removeprefix("data: ")
        if event and event != "[DONE]":
            for choice in json.loads(event)["choices"]:
                yield choice["delta"].get("content") or ""


def model_name(settings: Settings) -> str:
    """The name the server gives its model."""
    connection = connect(settings)
    connection.request("GET", "/v1/models", headers=headers(settings))
    name: str = json.load(connection.getresponse())["data"][0]["id"]
    return name


def connect(settings: Settings) -> http.client.HTTPConnection:
    """A connection to the server on this machine, whatever address it is bound to."""
    any_address = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (nothing is bound here)
    host = any_address.get(settings.host, settings.host)
    return http.client.HTTPConnection(host, settings.port, timeout=60)


def headers(settings: Settings) -> dict[str, str]:
    """With the key, if the settings hold one."""
    key = {"Authorization": f"Bearer {settings.api_key[0]}"} if settings.api_key else {}
    return {"Content-Type": "application/json", **key}


def where(settings: Settings) -> str:
    """What the user can do next."""
    base = f"http://{connect(settings).host}:{settings.port}"
    key = ' -H "Authorization: Bearer $GALLEY_API_KEY"' if settings.api_key else ""
    return f"""

Serving at {base}/v1 (documentation of the API: {base}/docs). Try:

  curl {base}/v1/chat/completions -H "Content-Type: application/json"{key} -d '{{
    "model": "{model_name(settings)}",
    "messages": [{{"role": "user", "content": "What is continuous batching?"}}]}}'

Ctrl-C stops the server.
"""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SettingsError as error:
        sys.exit(f"galley: {error}")
