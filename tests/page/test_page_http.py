"""The page's files over plain HTTP: public, with a strict content security policy."""

import re
from pathlib import Path

import httpx
import pytest

from galley.server import page_files
from tests.page.conftest import KEY
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("page")

FOLDER = Path(page_files.__file__).with_name("page")
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def test_every_file_is_served_without_a_key_as_what_it_is(served: Server) -> None:
    assert len(page_files.PATHS) == len(list(FOLDER.iterdir()))
    for path in page_files.PATHS:
        answer = httpx.get(served.url + path)
        file = FOLDER / ("index.html" if path == "/" else Path(path).name)
        assert answer.status_code == 200
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"] == TYPES[file.suffix[1:]]
        head = httpx.head(served.url + path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(answer.content))


def test_the_page_may_do_nothing_with_others(served: Server) -> None:
    headers = httpx.get(served.url).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "camera=()" in headers["permissions-policy"]


def test_the_files_name_no_other_origin_and_hold_no_markup_in_scripts() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|\binnerHTML|\beval\(", text), file
        assert not re.search(r"\sstyle=|\son\w+=\"", text), file
        assert len(text.splitlines()) < 400, file


def test_files_named_by_the_page_are_the_served_ones() -> None:
    index = (FOLDER / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:href|src)="(page/[^"]+)"', index))
    for file in FOLDER.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        named |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
        named |= set(re.findall(r'addModule\("([^"]+)"', text))
    assert {f"/{name}" for name in named} | {"/"} == page_files.PATHS


def test_the_api_behind_the_page_still_asks_for_a_key(served: Server) -> None:
    for path in ("/v1/models", "/metrics", "/docs", "/page/", "/page/../docs"):
        assert httpx.get(served.url + path).status_code == 401
    assert httpx.get(f"{served.url}/v1/models", headers=bearer()).status_code == 200


def test_a_model_says_what_it_does(served: Server) -> None:
    cards = httpx.get(f"{served.url}/v1/models", headers=bearer()).json()["data"]
    tasks = {card["id"]: card["tasks"] for card in cards}
    assert "generate" in tasks["chat"]
    assert "transcribe" not in tasks["chat"]
    assert "transcribe" in tasks["speech"]


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}
