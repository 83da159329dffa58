"""Hub cases run in a separate process: the hub library reads its environment when imported."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from galley.errors import ModelNotFound
from galley.formats import aliases
from galley.formats.source import HUB_ID, resolve_model
from tests.cli.command import galley
from tests.formats.hub import CUT_AFTER, FILES, WANTED, WEIGHTS, Hub, running_hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def resolve(
    home: Path, endpoint: str, model: str = "acme/tiny", *, call: str = "", **environ: str
) -> tuple[Path | str, str]:
    """Return the folder or the error's text, and the output on stderr."""
    program = (
        "import sys\nfrom galley.errors import ModelNotFound\n"
        "from galley.formats.source import resolve_model\n"
        f"try: print('ok', resolve_model({model!r}{call}))\n"
        "except ModelNotFound as error: print('no', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": "",
            "NO_PROXY": "127.0.0.1",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    verdict, _, rest = done.stdout.strip().partition(" ")
    return (Path(rest) if verdict == "ok" else rest), done.stderr


# --- no hub needed ------------------------------------------------------------------------------


def test_the_bundled_models_have_names_and_nothing_means_the_first() -> None:
    from galley.demo import DRAFT_DIR, EMBED_DIR, MODEL_DIR
    from galley.demo.speech import SPEECH_MODEL_DIR

    assert resolve_model("") == resolve_model("galley-demo") == MODEL_DIR
    assert resolve_model("galley-demo-speech") == SPEECH_MODEL_DIR
    assert resolve_model("galley-demo-draft") == DRAFT_DIR
    assert resolve_model("galley-demo-embed") == EMBED_DIR


def test_an_existing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("org/name").resolve() == tmp_path / "org" / "name"
    assert resolve_model("~/org") == tmp_path / "org"


@pytest.mark.parametrize("model", ["./gone", "/gone/model", "~/gone", "../gone", "org/name/", "."])
def test_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    if model == ".":
        assert resolve_model(model) == Path(".")
    else:
        with pytest.raises(ModelNotFound, match=f"the folder {model} does not exist"):
            resolve_model(model)


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelNotFound, match="is a file; give its folder"):
        resolve_model(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "model", ["a/b/c", "gpt2", "org/na me", "org/\0", "-x/y", "x" * 5000, "ö/é"]
)
def test_neither_folder_nor_hub_id(model: str) -> None:
    with pytest.raises(ModelNotFound, match="is not a folder, a hub id"):
        resolve_model(model)


def test_an_id_that_the_hub_library_refuses(tmp_path: Path) -> None:
    text, _ = resolve(tmp_path, "http://127.0.0.1:9", "org/na--me")
    assert "'org/na--me' is not a hub id" in str(text)


# --- no hub there -------------------------------------------------------------------------------


def test_offline(tmp_path: Path) -> None:
    text, _ = resolve(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert "not complete in the cache" in str(text)
    assert "HF_HUB_OFFLINE is set" in str(text)


def test_unreachable(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening, so connections are refused
        text, _ = resolve(tmp_path, f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert "the hub cannot be reached" in str(text)
    assert "refused" in str(text)


def test_a_hub_that_never_answers(tmp_path: Path, hub: Hub) -> None:
    hub.silent = True
    text, _ = resolve(tmp_path, hub.url, HF_HUB_ETAG_TIMEOUT="1", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert "the hub cannot be reached" in str(text)


# --- a hub ----------------------------------------------------------------------------------------


def files_of(folder: Path) -> set[str]:
    """Return the paths within a folder; broken links are left out."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_download_then_cache(tmp_path: Path, hub: Hub) -> None:
    folder, bars = resolve(tmp_path, hub.url)
    assert isinstance(folder, Path), folder
    assert files_of(folder) == WANTED
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)
    assert set(hub.fetched()) == WANTED
    assert "100%" in bars

    hub.requests.clear()
    assert resolve(tmp_path, hub.url)[0] == folder
    assert hub.fetched() == []
    assert resolve(tmp_path, hub.url, HF_HUB_OFFLINE="1")[0] == folder
    assert resolve(tmp_path, "http://127.0.0.1:9")[0] == folder


def test_no_bars(tmp_path: Path, hub: Hub) -> None:
    folder, bars = resolve(tmp_path, hub.url, call=", show_progress=False")
    assert isinstance(folder, Path)
    assert "%" not in bars


def test_a_cut_connection_resumes_where_it_was(tmp_path: Path, hub: Hub) -> None:
    hub.cuts = 1
    folder, _ = resolve(tmp_path, hub.url)
    assert isinstance(folder, Path), folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [
        r for m, path, r in hub.requests if m == "GET" and path.endswith("/model.safetensors")
    ]
    first, second = ranges
    assert first is None
    assert second is not None
    assert 0 < int(second.removeprefix("bytes=").split("-")[0]) <= CUT_AFTER


def test_a_failed_download_keeps_what_is_complete(tmp_path: Path, hub: Hub) -> None:
    hub.cuts = 10**6
    text, _ = resolve(tmp_path, hub.url)
    assert "the download of acme/tiny was interrupted" in str(text)
    offline, _ = resolve(tmp_path, hub.url, HF_HUB_OFFLINE="1")
    assert "not complete in the cache" in str(offline)

    hub.cuts = 0
    before = files_of(next(tmp_path.glob("hub/*/snapshots/*")))
    hub.requests.clear()
    folder, _ = resolve(tmp_path, hub.url)
    assert isinstance(folder, Path), folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert before
    assert set(hub.fetched()) == WANTED - before


@pytest.mark.parametrize(
    ("model", "call", "message"),
    [
        ("acme/none", "", "the hub has no model acme/none, or it is private"),
        ("acme/gated", "", "acme/gated is gated; accept its terms"),
        ("acme/tiny", ", revision='v9'", "acme/tiny has no revision 'v9'"),
        ("acme/broken", "", "the hub cannot be reached"),
    ],
)
def test_refusals(tmp_path: Path, hub: Hub, model: str, call: str, message: str) -> None:
    text, _ = resolve(tmp_path, hub.url, model, call=call)
    assert message in str(text)


def test_a_repository_without_safetensors(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in FILES if name.endswith(".safetensors")]:
        monkeypatch.delitem(FILES, name)
    text, _ = resolve(tmp_path, hub.url)
    assert "has no *.safetensors" in str(text)
    for number in (1, 2):
        monkeypatch.setitem(FILES, f"q4/a-q4-0000{number}-of-00002.gguf", b"GGUF" * number)
    file, _ = resolve(tmp_path / "one", hub.url)
    assert isinstance(file, Path), file
    assert file.read_bytes() == b"GGUF"
    assert files_of(file.parent) == {"a-q4-00001-of-00002.gguf", "a-q4-00002-of-00002.gguf"}
    assert resolve(tmp_path / "one", hub.url, HF_HUB_OFFLINE="1")[0] == file
    monkeypatch.setitem(FILES, "a-q8.gguf", b"GGUF")
    text, _ = resolve(tmp_path, hub.url)
    assert "acme/tiny/a-q8.gguf; q4/a-q4-00001-of-00002.gguf" in str(text)


# --- galley pull, list and rm ---------------------------------------------------------------------


@pytest.fixture
def environ(tmp_path: Path, hub: Hub) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "",
        "NO_PROXY": "127.0.0.1",
    }


def stored(home: Path) -> set[str]:
    """Return the files of all models in the cache."""
    return {name for folder in home.glob("hub/*/snapshots/*") for name in files_of(folder)}


def test_pulled_listed_and_removed(tmp_path: Path, environ: dict[str, str]) -> None:
    pulled = galley("pull", "acme/tiny", environ=environ)
    assert pulled.returncode == 0, pulled.stderr
    assert files_of(Path(pulled.stdout.strip())) == WANTED

    listed = galley("list", environ=environ).stdout
    size = sum(len(FILES[name]) for name in WANTED)
    assert re.search(rf"^acme/tiny +{size / 1e6:.1f} MB +just now$", listed, re.MULTILINE), listed

    removed = galley("rm", "acme/tiny", environ=environ)
    assert removed.returncode == 0, removed.stderr
    assert f"removed acme/tiny ({size / 1e6:.1f} MB)" in removed.stdout
    assert not stored(tmp_path)
    assert "acme" not in galley("list", environ=environ).stdout

    again = galley("rm", "acme/tiny", environ=environ)
    assert again.returncode == 1
    assert "acme/tiny is not in the cache" in again.stderr


def test_a_gguf_file_of_several_is_removed_alone(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a-q4.gguf", "a-q8.gguf")
    for name in names:
        monkeypatch.setitem(FILES, name, b"GGUF" + name.encode() * 1000)
    for name in names:
        pulled = galley("pull", f"acme/tiny/{name}", environ=environ)
        assert pulled.returncode == 0, pulled.stderr
    listed = galley("list", environ=environ).stdout
    assert "acme/tiny/a-q4.gguf" in listed
    assert "acme/tiny/a-q8.gguf" in listed
    assert galley("rm", "acme/tiny/a-q4.gguf", environ=environ).returncode == 0
    assert stored(tmp_path) == {"a-q8.gguf"}
    assert galley("rm", "acme/tiny/a-q4.gguf", environ=environ).returncode == 1
    assert galley("rm", "acme/tiny/a-q8.gguf", environ=environ).returncode == 0
    assert not stored(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pull", "no-such"), "'no-such' is not a hub id"),
        (("pull", "acme/none"), "the hub has no model acme/none"),
        (("rm", "galley-demo"), "galley-demo is bundled with Galley"),
    ],
)
def test_what_cannot_be_done_is_reported(
    environ: dict[str, str], arguments: tuple[str, str], message: str
) -> None:
    done = galley(*arguments, environ=environ)
    assert done.returncode == 1
    assert message in done.stderr


def test_a_short_name_is_looked_for_under_its_hub_id(environ: dict[str, str], hub: Hub) -> None:
    galley("pull", "smollm2:135m", environ=environ)
    assert any("HuggingFaceTB/SmolLM2-135M-Instruct" in path for _, path, _ in hub.requests)


def test_short_names_stand_for_hub_ids() -> None:
    for name, meant in aliases.ALIASES.items():
        assert HUB_ID.fullmatch(meant), name
        assert name == name.lower()
        assert name.partition(":")[0] in aliases.ALIASES, f"{name}: no default without a tag"
        assert aliases.looks_like_name(name)
