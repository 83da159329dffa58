"""Unusable model files: a running server continues, a starting one exits with one clear error."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.command import galley
from tests.formats.damage import CONFIG, INDEX, NORM, WEIGHTS, add_token, changed, changed_header
from tests.server.conftest import ADMIN_KEY, CONTEXT
from tests.server.neighbor import alone
from tests.server.refusals import error_of
from tests.server.serving import Server, until
from tests.thorough import THOROUGH

pytestmark = pytest.mark.xdist_group("server_model_files")

MOST_BYTES = 2**28
"""Allowed growth of the server and its processes while they read files that they then refuse."""


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model files that are served and corrupted by each test."""
    return Path(shutil.copytree(model, tmp_path_factory.mktemp("served") / "tiny"))


@pytest.fixture(scope="module")
def server(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        served, log, kv_cache_tokens=4 * CONTEXT, threads=1, admin_key=ADMIN_KEY
    ) as running:
        yield running


@pytest.fixture
def folder(model: Path, served: Path) -> Iterator[Path]:
    """The served folder, intact before and after each test."""
    yield served
    shutil.rmtree(served)
    shutil.copytree(model, served)


def pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def code(folder: Path) -> None:
    with changed(folder / CONFIG) as config:
        config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}


def long_header(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", 101 * 2**20))
        file.truncate(200 * 2**20)


def cut(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def overflow(folder: Path) -> None:
    with changed_header(folder) as header:
        header[NORM]["data_offsets"] = [10**30, 10**30 + 192]


def shard(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"weight_map": {NORM: name}}))

    return spoil


def config(**fields: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with changed(folder / CONFIG) as content:
            content.update(fields)

    return spoil


def token(folder: Path) -> None:
    add_token(folder, 320)


def link(folder: Path) -> None:
    outside = folder.parent / "outside"
    shutil.move(folder / WEIGHTS, outside)
    (folder / WEIGHTS).symlink_to(outside)


def circle(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(name)

    return spoil


def dangling(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("gone.json")


def fifo(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def template(source: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(source)

    return spoil


DAMAGE = [
    pytest.param(pickle, "Galley reads safetensors", id="pickle"),
    pytest.param(code, "auto_map", id="code"),
    pytest.param(long_header, WEIGHTS, id="header"),
    pytest.param(cut, WEIGHTS, id="cut"),
    pytest.param(overflow, NORM, id="offsets"),
    pytest.param(shard("gone.safetensors"), "gone.safetensors", id="shard"),
    pytest.param(config(hidden_size=52), "model.embed_tokens.weight", id="shape"),
    pytest.param(token, "<|evil|>", id="token"),
    pytest.param(shard("../model.safetensors"), INDEX, id="path"),
    pytest.param(link, "symbolic link", id="link"),
    pytest.param(config(num_hidden_layers=10**9), "num_hidden_layers", id="layers"),
    pytest.param(config(head_dim=10**9), "head_dim", id="head_dim"),
    pytest.param(template("{% for %}"), "chat_template.jinja", id="template"),
    pytest.param(config(num_hidden_layers=1), "num_hidden_layers", id="surplus"),
    pytest.param(circle("tokenizer.json"), "tokenizer.json: cannot be read", id="circle"),
    pytest.param(circle("tokenizer_config.json"), "tokenizer_config.json", id="circle config"),
    pytest.param(circle("chat_template.jinja"), "chat_template.jinja", id="circle template"),
    pytest.param(circle(CONFIG), CONFIG, id="circle model config"),
    pytest.param(circle(WEIGHTS), "safetensors", id="circle weights"),
    pytest.param(dangling, "tokenizer.json: cannot be read", id="dangling"),
    pytest.param(shard("x\0.safetensors"), INDEX, id="name"),
    pytest.param(config(num_hidden_layers=10**18), "num_hidden_layers", id="layers beyond 64 bits"),
    pytest.param(fifo, "regular file", id="fifo"),
]


def resident(server: Server) -> int:
    return sum(process.memory_info().rss for process in server.processes())


@pytest.mark.parametrize(("spoil", "said"), DAMAGE)
def test_a_running_model_keeps_serving(
    server: Server,
    http: httpx.Client,
    folder: Path,
    spoil: Callable[[Path], None],
    said: str,
) -> None:
    before = resident(server)
    spoil(folder)
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    answer = http.post("/admin/reload", json={"model": "tiny"}, headers=admin)
    assert said in error_of(answer)["message"]
    assert resident(server) - before < MOST_BYTES
    assert server.metrics()["galley_engine_restarts_total"] == 0


@pytest.mark.parametrize(("spoil", "said"), DAMAGE[:: 4 if THOROUGH else 8])
def test_a_start_ends_with_one_line(
    server: Server, folder: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(folder)
    done = galley("serve", folder, "--port", 0, "--threads", 1)
    error = done.stderr
    assert done.returncode == 1
    assert error.count("galley: cannot start: ") == 1
    assert said in error
    assert "Traceback" not in error
    assert "starting a new one" not in error


@pytest.mark.parametrize(
    ("space", "said"), [(400_000, "does not fit in memory"), (230_000, "memory")]
)
def test_a_start_without_memory_says_what_is_missing(folder: Path, space: int, said: str) -> None:
    code, error = start(folder, space * 1024)
    assert code == 1
    assert said in error
    assert "ulimit -v" in error
    assert "Traceback" not in error


def start(folder: Path, address_space: int) -> tuple[int, str]:
    """Return the exit code of a server that cannot start, and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "galley", "serve", str(folder), "--port", "0", "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},  # each of numpy's threads uses address space
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space)),
    )
    return done.returncode, done.stderr


@pytest.fixture
def packed(model: Path, tmp_path: Path) -> tuple[str, bytearray, Path]:
    """Return a model's answer, and its packed weights on disk from an earlier start."""
    with packing_server(model, tmp_path) as server, server.client() as client:
        text = alone(client)
        path = until(lambda: next((tmp_path / "cache").rglob("*.packed"), None))
        server.stop()
    assert path is not None
    return text, bytearray(path.read_bytes()), path


def packing_server(model: Path, folder: Path) -> Server:
    environ = {"GALLEY_CACHE_DIR": str(folder / "cache")}
    settings = {"weight_dtype": "bf16", "threads": 1, "kv_cache_tokens": 4 * CONTEXT}
    return Server(model, folder / "log", environ=environ, **settings)  # type: ignore[arg-type]


def test_packed_weights_that_changed_while_stopped_are_found(
    model: Path, tmp_path: Path, packed: tuple[str, bytearray, Path]
) -> None:
    text, data, path = packed
    data[-1000] ^= 4
    path.write_bytes(data)
    with packing_server(model, tmp_path) as server, server.client() as client:
        assert alone(client) == text
        assert "are damaged" in server.log


def test_packed_weights_that_change_while_served_are_found(
    model: Path, tmp_path: Path, packed: tuple[str, bytearray, Path]
) -> None:
    """The model produces no valid number; the engine restarts and continues every stream."""
    text, data, path = packed
    with packing_server(model, tmp_path) as server, server.client() as client:
        with path.open("r+b") as file:
            file.seek(len(data) // 2)
            file.write(b"\xff" * (len(data) - len(data) // 2))
        assert alone(client) == text
        assert "are damaged" in server.log
        assert server.metrics()["galley_engine_restarts_total"] == 1
