"""A GGUF file behind the API: serving continues when a damaged file replaces it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import make_checkpoint
from tests.formats.gguf_files import write_gguf
from tests.server.conftest import ADMIN_KEY, CONTEXT
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_gguf")


@pytest.fixture(scope="module")
def path(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", model)


@pytest.fixture(scope="module")
def server(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(path, log, kv_cache_tokens=2 * CONTEXT, threads=1, admin_key=ADMIN_KEY) as running:
        yield running


def test_answers_have_the_form_that_a_schema_asks_for(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    with server.openai() as client:
        said = client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "Where?"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            max_tokens=100,
        )
    assert json.loads(said.choices[0].message.content or "")["city"] in ("Paris", "Rome")


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("Q4_1", "int4 (group 32, F16 scales, float minima)"),
        ("Q8_0", "int8 (group 32, F16 scales)"),
        ("F16", "f16"),
    ],
)
def test_the_kind_of_a_files_weights_is_reported(type: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    folder = make_checkpoint(tmp_path / "wide", hidden_size=64, intermediate_size=128)
    path = write_gguf(tmp_path / "q.gguf", folder, type)
    with Server(path, tmp_path / "log", kv_cache_tokens=1024, threads=1) as server:
        [listed] = httpx.get(f"{server.url}/api/tags").json()["models"]
        shown = httpx.post(f"{server.url}/api/show", json={"model": "q"}).json()
        [line] = [line for line in server.log.splitlines() if "multiplied with" in line]
    assert listed["details"]["quantization_level"].startswith(kind)
    assert shown["details"] == listed["details"]
    assert f" {kind}" in line


def test_a_file_is_served_by_its_name_and_survives_a_damaged_one(
    server: Server, path: Path
) -> None:
    with server.openai() as client:
        assert [found.id for found in client.models.list()] == ["small"]
        chat: dict[str, Any] = {"model": "small", "max_tokens": 12, "temperature": 0.0}
        chat["messages"] = [{"role": "user", "content": "the cat sat"}]
        said = client.chat.completions.create(**chat)
        whole = path.read_bytes()
        replacement = path.with_suffix(".new")
        replacement.write_bytes(whole[: len(whole) // 2])
        replacement.replace(path)
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        with httpx.Client(base_url=server.url, headers=headers) as http:
            answer = http.post("/admin/reload", json={"model": "small"})
        assert "small.gguf: " in str(error_of(answer)["message"])
        again = client.chat.completions.create(**chat)
    assert again.choices[0].message.content == said.choices[0].message.content
    assert said.usage.prompt_tokens > 10
