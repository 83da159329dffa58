"""First use of a server: a core install, curl, no model name, no network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.missing import without
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")

CHAT = "/v1/chat/completions"
MESSAGE = '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'


def test_a_speech_model_without_the_extra_does_not_start(hearing: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "galley", "serve", str(hearing), "--port", "0", "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=without(tmp_path, "av") | {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 1, done.stderr
    assert "speech needs av, which is not installed: pip install 'galley-inference[speech]'" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_request_need_not_name_the_only_model(server: Server) -> None:
    with server.client() as http:
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
            ("/v1/completions", {"prompt": "hi"}),
        ):
            for named in ({}, {"model": None}):
                answer = http.post(path, json={**body, **named, "max_tokens": 2})
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == "tiny"
        wrong = http.post(CHAT, json={"model": "gpt", **json.loads(MESSAGE)})
        assert error_of(wrong, 404)["param"] == "model"
        described = http.get("/openapi.json").json()["components"]["schemas"]
        assert "model" not in described["ChatRequest"]["required"]


def test_curl_need_not_say_that_it_sends_json(server: Server) -> None:
    for arguments in ([], ["-H", "Content-Type:"], ["-H", "Content-Type: application/json"]):
        done = subprocess.run(
            ["curl", "-sS", "-d", MESSAGE, *arguments, server.url + CHAT],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert '"object":"chat.completion"' in done.stdout, done.stdout
    with server.client() as http:
        form = http.post(CHAT, data={"model": "tiny"})
        assert "is not JSON" in error_of(form, 400)["message"]


def test_a_web_page_must_declare_json(server: Server) -> None:
    """The request comes from a page on this machine: other pages are refused altogether."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with server.client() as http:
        for header, value in (("Origin", server.url), ("Sec-Fetch-Site", "same-origin")):
            answer = http.post(CHAT, content=MESSAGE, headers={**form, header: value})
            assert error_of(answer, 415)["code"] == "unsupported_media_type"


def test_probes_and_pages_answer(server: Server) -> None:
    for path in ("/health", "/ready", "/", "/docs"):
        assert httpx.head(server.url + path).status_code == 200, path
    options = httpx.options(server.url + CHAT)
    assert error_of(options, 405)
    assert options.headers["allow"] == "POST"
    page = httpx.get(server.url + "/docs").text
    assert re.findall(r"<(?:script|link|img|iframe)|https?://|@import", page) == []
    assert CHAT in page
