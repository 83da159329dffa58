"""``galley cache`` on files written by real engines."""

import os
import shutil
import time
from pathlib import Path

import pytest

from galley.engine.loaders import load_engine
from galley.ops import background
from galley.ops.packed_cache import cached_files
from galley.ops.packed_files import packed_folder
from galley.runtimes import optimized_graphs
from galley.runtimes.onnx import OnnxOptions, load_model
from galley.runtimes.optimized_graphs import stored
from galley.runtimes.tensor_model import LoadSettings
from galley.settings.engine import EngineSettings, WeightDType
from tests.runtimes import onnx_files

from .command import galley

DAY = 86400


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set a cache folder that does not exist yet; return the variables."""
    variables = {"GALLEY_CACHE_DIR": str(tmp_path / "cache")}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "models--org--tiny" / "snapshots" / "0123456789abcdef"
    return Path(shutil.copytree(checkpoint, folder))


def start(model: Path, kind: WeightDType, *, days_ago: float = 0) -> Path:
    """Start with ``kind``; return the file that it leaves, with its last use in the past."""
    load_engine(EngineSettings(model=str(model), weight_dtype=kind, kv_cache_tokens=256), model)
    background.finish()
    (path,) = packed_folder().glob(f"*-{kind}-*")
    used = time.time() - days_ago * DAY
    os.utime(path, (used, used))
    return path


def cache(*args: str, environ: dict[str, str]) -> str:
    done = galley("cache", *args, environ=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_list_names_model_kind_size_and_use(environ: dict[str, str], model: Path) -> None:
    assert "no packed weights in" in cache("list", environ=environ)
    start(model, "int4", days_ago=3.5)
    size = start(model, "float32").stat().st_size
    (packed_folder() / "torn.packed").write_bytes(b"galleypk")
    lines = cache("list", environ=environ).splitlines()
    (row,) = (line for line in lines if "float32" in line)
    assert "org/tiny@0123456" in row
    assert f"{size / 1000:.1f} KB" in row
    assert "just now" in row
    assert sum("3 days ago" in line for line in lines) == 1
    assert any("torn.packed" in line and "is damaged" in line for line in lines)
    assert str(packed_folder()) in lines[-1]


def test_prune_without_options_takes_what_no_start_can_use(
    environ: dict[str, str], model: Path, tmp_path: Path
) -> None:
    kept = start(model, "int4", days_ago=1000)
    gone = Path(shutil.copytree(model, tmp_path / "gone"))
    (packed_folder() / "torn.packed").write_bytes(b"galleypk")
    load_engine(EngineSettings(model=str(gone), weight_dtype="int8", kv_cache_tokens=256), gone)
    background.finish()
    shutil.rmtree(gone)
    said = cache("prune", environ=environ)
    assert [file.path for file in cached_files(packed_folder())] == [kept]
    assert f"removed {gone} int8" in said
    assert "removed torn.packed" in said
    assert "freed" in said.splitlines()[-1]


def test_prune_by_age_size_or_all(environ: dict[str, str], model: Path) -> None:
    old = start(model, "int8", days_ago=31)
    middle = start(model, "float32", days_ago=2)
    new = start(model, "int4")
    assert "last used 31 days ago" in cache("prune", "--older-than", "30", environ=environ)
    assert not old.exists()
    both = middle.stat().st_size + new.stat().st_size
    assert "freed 0 B" in cache("prune", "--max-size", f"{both}", environ=environ)
    said = cache("prune", "--max-size", f"{(both - 1) / 1000:.3f}kb", environ=environ)
    assert "float32" in said
    assert [file.path for file in cached_files(packed_folder())] == [new]
    cache("prune", "--all", environ=environ)
    assert not cached_files(packed_folder())


def test_what_cannot_be_removed_is_named_and_the_rest_goes(
    environ: dict[str, str], model: Path
) -> None:
    start(model, "int4")
    (packed_folder() / "odd.packed").mkdir()
    assert "cannot be read" in cache("list", environ=environ)
    done = galley("cache", "prune", "--all", environ=environ)
    assert done.returncode == 0
    assert "odd.packed cannot be removed" in done.stderr
    assert [path.name for path in packed_folder().iterdir()] == ["odd.packed"]


def test_what_is_no_size_is_refused(environ: dict[str, str]) -> None:
    done = galley("cache", "prune", "--max-size", "lots", environ=environ)
    assert done.returncode == 2
    assert "'lots' is not a size" in done.stderr


def test_a_file_in_place_of_the_folder_caches_nothing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert "no packed weights in" in cache("list", environ=environ)
    assert "freed 0 B" in cache("prune", "--all", environ=environ)


def test_optimized_graphs_are_listed_and_removed(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimized_graphs, "saves", lambda *_: True)
    files = [
        onnx_files.perceptron(tmp_path / f"{name}.onnx", hidden=n)
        for n, name in ((8, "a"), (9, "b"))
    ]
    for days, file in enumerate(files):
        load_model(file, OnnxOptions(), LoadSettings(1))
        [kept] = (one for one in stored() if one.source == str(file))
        os.utime(kept.path, (time.time() - days * DAY,) * 2)
    lines = cache("list", environ=environ).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(str(tmp_path))] == list(
        map(str, files)
    )
    newest = stored()[0].size
    assert f"removed the optimized graph of {files[1]}" in cache(
        "prune", "--max-size", str(newest), environ=environ
    )
    assert [one.source for one in stored()] == [str(files[0])]
    files[0].unlink()
    assert "removed the optimized graph" in cache("prune", environ=environ)
    assert stored() == []
