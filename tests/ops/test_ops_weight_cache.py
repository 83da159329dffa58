"""Packed weights on disk: the same bits from the file, and uninterrupted service if it is damaged."""

import dataclasses
import logging
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley import _native
from galley.engine.loaders import load_engine
from galley.formats.checkpoint import Checkpoint
from galley.ops import background, packed_cache, packed_files, packing, weight_cache
from galley.ops.executor import forward
from galley.ops.packed_cache import CachedFile, cached_files
from galley.ops.packed_files import Header, map_file, packed_folder
from galley.settings.engine import EngineSettings, WeightDType
from tests.conftest import CheckpointMaker
from tests.native.harness import KINDS, ragged
from tests.thorough import examples

PROMPT = [5, 60, 200, 17, 3]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed weights, which does not exist yet."""
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))
    return packed_folder()


@pytest.fixture
def model(checkpoint: CheckpointMaker, tmp_path: Path) -> Path:
    """A separate checkpoint."""
    return Path(shutil.copytree(checkpoint("llama-mha-tied"), tmp_path / "model"))


def logits(model: Path, kind: WeightDType = "int4", **changes: Any) -> npt.NDArray[np.float32]:
    """Return the logits of a freshly started engine, which has written its file."""
    settings = EngineSettings(model=str(model), weight_dtype=kind, kv_cache_tokens=256, threads=2)
    executor = load_engine(dataclasses.replace(settings, **changes), model)._executor
    background.finish()
    return forward(executor, ragged([(PROMPT, len(PROMPT))], first_block=0)).copy()


def only_file(cache: Path) -> CachedFile:
    """Return the packed file; only a record of its uses and step times may be stored next to it."""
    (file,) = cached_files(cache)
    others = {path.suffix for path in cache.iterdir() if path != file.path}
    assert others <= {".use", ".measured"}
    return file


def header_of(cache: Path) -> Header:
    header = only_file(cache).header
    assert header is not None
    return header


@pytest.fixture
def packing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("packed although there is a file")

    monkeypatch.setattr(packing, "pack", fail)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_start_has_the_same_bits_and_packs_nothing(
    kind: WeightDType, cache: Path, model: Path, request: pytest.FixtureRequest
) -> None:
    uncached = logits(model, kind, weight_cache=False)
    assert not cache.exists()
    first = logits(model, kind)
    request.getfixturevalue("packing_fails")
    second = logits(model, kind)
    assert np.array_equal(first, uncached)
    assert np.array_equal(second, uncached)
    assert header_of(cache).kind == kind


def test_one_file_serves_whatever_the_activations_are(
    cache: Path, model: Path, request: pytest.FixtureRequest
) -> None:
    uncached = logits(model, activations="float32", weight_cache=False)
    assert not np.array_equal(logits(model, activations="int8"), uncached)
    request.getfixturevalue("packing_fails")
    assert np.array_equal(logits(model, activations="float32"), uncached)


def test_it_serves_while_the_file_is_written(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slow_disk(path: Path, header: Header, matrices: Any) -> None:
        begun.set()
        assert may_go_on.wait(timeout=60)
        packed_files.write_file(path, header, matrices)

    expected = logits(model, weight_cache=False)
    monkeypatch.setattr(weight_cache, "write_file", slow_disk)
    settings = EngineSettings(model=str(model), weight_dtype="int4", kv_cache_tokens=256, threads=2)
    executor = load_engine(settings, model)._executor
    assert begun.wait(timeout=60)
    batch = ragged([(PROMPT, len(PROMPT))], first_block=0)
    assert np.array_equal(forward(executor, batch), expected)
    assert not cached_files(cache)
    may_go_on.set()
    background.finish()
    assert header_of(cache).kind == "int4"


def test_tied_embeddings_are_kept_once(cache: Path, model: Path) -> None:
    logits(model)
    names = [name for entry in header_of(cache).entries for name in entry.names]
    assert names.count("model.embed_tokens.weight") == 1
    assert len(names) == len(set(names)) == 1 + 2 * 7
    assert "lm_head.weight" not in names


def test_each_kind_has_its_own_file(cache: Path, model: Path) -> None:
    for kind in KINDS:
        logits(model, kind)
    assert sorted(file.header.kind for file in cached_files(cache) if file.header) == sorted(KINDS)


def test_weights_that_were_overwritten_are_packed_anew(cache: Path, model: Path) -> None:
    """This holds even if the size, the header and the modification time are unchanged."""
    before = logits(model)
    file = model / "model.safetensors"
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-1000:] = bytes(1000)
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    expected = logits(model, weight_cache=False)
    assert not np.array_equal(expected, before)
    assert np.array_equal(logits(model), expected)
    new, old = cached_files(cache)  # another machine may still start with the old weights
    os.utime(old.path, (0, 0))
    data[-1000:] = bytes(range(250)) * 4
    file.write_bytes(data)
    logits(model)
    assert [kept.path for kept in cached_files(cache)][1:] == [new.path]


def test_a_shard_that_was_overwritten_counts(cache: Path, tmp_path: Path) -> None:
    from tests.checkpoints import make_checkpoint

    for seed in (1, 2):
        model = make_checkpoint(tmp_path / "model", seed=seed, max_shard_size="30KB")
        assert len(list(model.glob("*.safetensors"))) > 1
        assert np.array_equal(logits(model), logits(model, weight_cache=False))


def test_equal_weights_share_a_file_wherever_they_lie(
    cache: Path, model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = logits(model)
    request.getfixturevalue("packing_fails")
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    (model / "model.safetensors").chmod(0o600)  # a different state, the same content
    for folder in (copy, model):
        assert np.array_equal(logits(folder), expected)
    only_file(cache)
    assert {use.folder for use in packed_cache.uses(cache)} == {str(model), str(copy)}


def test_what_is_known_of_a_state_is_not_read_again(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(model)
    monkeypatch.setattr("galley.formats.checkpoint.Checkpoint.content_hash", None)
    logits(model)


def test_weights_that_change_while_they_are_packed_are_not_kept(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_hash = Checkpoint.content_hash

    def slow(checkpoint: Checkpoint) -> str:
        os.utime(checkpoint.folder / "model.safetensors")
        return content_hash(checkpoint)

    monkeypatch.setattr(Checkpoint, "content_hash", slow)
    logits(model)
    assert not cached_files(cache)


def test_an_unreadable_file_is_ignored(cache: Path, model: Path) -> None:
    (cache / "folder.packed").mkdir(parents=True)
    (cache / "torn.use").write_text("{")
    expected = logits(model)
    assert np.array_equal(logits(model), expected)
    good, odd = sorted(cached_files(cache), key=lambda file: file.header is None)
    assert good.header is not None
    assert odd.flaw.startswith("cannot be read: ")
    assert not (cache / "torn.use").exists()


def test_a_file_that_lacks_a_matrix_is_written_again(
    cache: Path, model: Path, request: pytest.FixtureRequest
) -> None:
    expected = logits(model)
    header, data, *_ = map_file(only_file(cache).path)
    kept = header.entries[:3]
    matrices = [data[e.offset : e.offset + e.size] for e in kept]
    shorter = msgspec.structs.replace(header, entries=kept)
    packed_files.write_file(only_file(cache).path, shorter, matrices)
    assert np.array_equal(logits(model), expected)
    assert header_of(cache).entries == header.entries
    request.getfixturevalue("packing_fails")
    logits(model)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(-1, 7))
def test_a_torn_file_is_repaired(cache: Path, model: Path, share: float, bit: int) -> None:
    """The file is cut anywhere, or a bit of its header is flipped."""
    expected = logits(model)
    file = only_file(cache)
    data = bytearray(file.path.read_bytes())
    if bit < 0:
        data = data[: int(share * len(data))]
    else:
        header_end = len(data) - sum(entry.size for entry in header_of(cache).entries) - 63
        data[int(share * header_end)] ^= 1 << bit
    file.path.write_bytes(data)
    assert np.array_equal(logits(model), expected)
    assert len(map_file(only_file(cache).path).data)


def test_what_another_version_wrote_is_replaced(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(model)
    with monkeypatch.context() as patch:
        patch.setattr("galley._native.LAYOUT_VERSION", 10**6)
        assert cached_files(cache)[0].flaw == "was written by another version"
        assert np.array_equal(logits(model), expected)
    assert cached_files(cache)[0].header is None
    assert np.array_equal(logits(model), expected)
    assert header_of(cache).kind == "int4"


def test_use_is_recorded_and_leftovers_are_removed(cache: Path, model: Path) -> None:
    logits(model)
    path = only_file(cache).path
    os.utime(path, (0, 0))
    logits(model)
    assert time.time() - path.stat().st_mtime < 3600
    old, new = cache / ".1.partial", cache / ".2.partial"
    for leftover in (old, new):
        leftover.touch()
    os.utime(old, (0, 0))
    logits(model, "int8")
    assert not old.exists()
    assert new.exists()


def test_a_running_engine_outlives_its_file(cache: Path, model: Path) -> None:
    logits(model)
    settings = EngineSettings(model=str(model), weight_dtype="int4", kv_cache_tokens=256)
    executor = load_engine(settings, model)._executor
    batch = ragged([(PROMPT, len(PROMPT))], first_block=0)
    before = forward(executor, batch).copy()
    only_file(cache).path.unlink()
    assert np.array_equal(forward(executor, batch), before)


@pytest.mark.parametrize("obstacle", ["a file", "no home", "read-only"])
def test_without_a_writable_folder_it_serves_and_warns_once(
    obstacle: str,
    cache: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if obstacle == "a file":
        (tmp_path / "cache").write_text("in the way")
    elif obstacle == "no home":

        def unknown(uid: int) -> None:
            raise KeyError(uid)

        monkeypatch.setattr(pwd, "getpwuid", unknown)
        for name in ("GALLEY_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    else:
        if os.geteuid() == 0:
            pytest.skip("nothing is read-only to root")
        cache.mkdir(parents=True)
        cache.chmod(0o555)
    with caplog.at_level(logging.WARNING):
        got = logits(model)
    assert np.array_equal(got, logits(model, weight_cache=False))
    (warning,) = caplog.messages
    assert "GALLEY_CACHE_DIR" in warning


def run(code: str, *args: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


GENERATE = """
import sys
from galley import LLM, SamplingParams
with LLM(sys.argv[1], quantize="int4", kv_cache_tokens=256, threads=1) as llm:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    print(llm.generate([[5, 6, 7]], params)[0].token_ids)
"""


def test_a_full_disk_means_uncached_service(cache: Path, model: Path) -> None:
    cache.mkdir(parents=True)
    # A limit on file size is as good as a full disk: the write fails in the middle.
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    done = run(limit + GENERATE, model)
    answer, said = done.communicate()
    assert done.returncode == 0, said
    assert answer.startswith("[")
    assert said.count("cannot store packed weights in") == 1
    assert "File too large" in said
    assert {path.suffix for path in cache.iterdir()} <= {".measured"}


def test_a_process_that_dies_writing_leaves_no_usable_file(cache: Path, model: Path) -> None:
    expected = logits(model, weight_cache=False)
    done = run("import os\nos.fsync = lambda descriptor: os._exit(9)\n" + GENERATE, model)
    done.communicate()
    assert done.returncode == 9
    leftovers = {path.suffix for path in cache.iterdir()}
    assert ".partial" in leftovers <= {".partial", ".measured"}
    assert not cached_files(cache)
    assert np.array_equal(logits(model), expected)
    assert len(cached_files(cache)) == 1


def test_processes_that_start_together_all_work(cache: Path, model: Path) -> None:
    started = [run(GENERATE, model) for _ in range(4)]
    answers = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert len(answers) == 1
    only_file(cache)


def test_matrices_smaller_and_larger_than_one_write(tmp_path: Path) -> None:
    sizes = [64 * (1 + i % 5) for i in range(2500)]
    sizes[1200:1200] = [packed_files._WRITE_BYTES + 64, 64, 3 * packed_files._WRITE_BYTES]
    matrices = [(np.arange(size) % (199 + i % 50)).astype(np.uint8) for i, size in enumerate(sizes)]
    entries, offset = [], 0
    for i, matrix in enumerate(matrices):
        entries.append(packed_files.Entry((str(i),), "int4", offset, matrix.nbytes, 0))
        offset += matrix.nbytes
    version = _native.LAYOUT_VERSION
    path = tmp_path / "many.packed"
    packed_files.write_file(path, Header(version, "/m", "o", "c", "int4", tuple(entries)), matrices)
    header, data, *_ = map_file(path)
    for entry, matrix in zip(header.entries, matrices, strict=True):
        assert np.array_equal(data[entry.offset : entry.offset + entry.size], matrix)
    assert data.ctypes.data % packed_files.ALIGNMENT == 0
    assert not data.flags.writeable
