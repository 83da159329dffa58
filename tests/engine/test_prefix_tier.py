"""Keys and values on disk: they save computing and change no bit, whatever happens to the files."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley import SamplingParams
from galley.engine.block_form import BlockForm
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.prefix_files import PrefixFiles
from galley.errors import SettingsError
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import BLOCK_TOKENS, Output
from tests.conftest import CheckpointMaker
from tests.engine.prefix_writer import SIZE, block, files_in
from tests.engine.requests import PROMPTS, WISHES, request, run, seen
from tests.server.serving import until
from tests.thorough import THOROUGH, examples

PROMPT = [(7 * i) % 90 + 5 for i in range(150)]
FULL = (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def engine_of(folder: Path, tier: Path | None, **chosen: Any) -> Engine:
    """Return an engine; ``tier``: its prefix_cache_dir."""
    chosen = {"threads": 1, "kv_cache_tokens": 512, "speculation": "off", **chosen}
    return load_engine(EngineSettings(prefix_cache_dir=str(tier or ""), **chosen), folder)


def answer(engine: Engine, salt: str = "", prompt: list[int] = PROMPT) -> tuple[Any, int]:
    """Return all that a caller sees of a text, and the prompt tokens that were cached."""
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
    [made] = expand(prompt, params, engine.info, request_id="r", cache_salt=salt)
    outputs: list[Output] = run(engine, [made])["r-0"]
    return seen({"r": outputs})["r"], max(output.cached_tokens for output in outputs)


def stored(tier: Path) -> list[Path]:
    return sorted(tier.rglob("*.kv"))


@pytest.mark.parametrize(
    ("variant", "chosen"),
    [
        ("llama", {}),
        ("llama", {"kv_dtype": "int8"}),
        ("llama", {"kv_dtype": "int4"}),
        ("llama", {"executor": "reference", "kv_dtype": "int8"}),
        ("llama", {"executor": "reference", "dtype": "bfloat16"}),
        ("qwen2-window", {}),
        ("gemma3", {"executor": "reference"}),
        ("deepseek-v3", {"kv_dtype": "int8"}),
    ],
)
def test_a_restarted_engine_computes_only_what_is_new(
    variant: str, chosen: dict[str, Any], checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    expected, _ = answer(engine_of(folder, None, **chosen))
    first = engine_of(folder, tmp_path, **chosen)
    assert answer(first) == (expected, 0)
    first.close()
    again = engine_of(folder, tmp_path, **chosen)
    assert answer(again) == (expected, FULL)
    assert not again.has_work
    assert again.stats.prefix_disk_hit_tokens == FULL
    assert again.stats.prefill_tokens == len(PROMPT) - FULL
    again.close()


def test_blocks_evicted_from_memory_are_read_back(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    engine = engine_of(checkpoint("llama"), tmp_path, kv_cache_tokens=224)
    expected, _ = answer(engine)
    other = [*reversed(PROMPT)]
    answer(engine, prompt=other)
    until(lambda: len(stored(tmp_path)) == 2 * ((len(PROMPT) + 12 - 1) // BLOCK_TOKENS))
    hits = engine.stats.prefix_disk_hit_tokens
    assert answer(engine) == (expected, FULL)
    assert engine.stats.prefix_disk_hit_tokens > hits
    engine.close()


def test_another_engine_reads_what_one_wrote(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """Both run; the second one began before there were any files."""
    one, two = (engine_of(checkpoint("llama"), tmp_path) for _ in range(2))
    expected, _ = answer(one)
    one.close()
    assert answer(two) == (expected, FULL)
    two.close()


def flip(place: int) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[place] ^= 1
        file.write_bytes(data)

    return spoil


def cut(size: int) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:size])

    return spoil


def exchange(file: Path) -> None:
    """Put another block's file there."""
    other = next(path for path in file.parent.parent.rglob("*.kv") if path != file)
    shutil.copy(other, file)


def link(file: Path) -> None:
    other = file.with_name("elsewhere")
    file.rename(other)
    file.symlink_to(other)


@pytest.mark.parametrize(
    "spoil",
    [flip(3), flip(40), flip(-1), flip(-40), cut(-1), cut(20), cut(0), exchange, link],
    ids=["magic", "preamble", "checksum", "value", "short", "head", "empty", "other", "link"],
)
def test_a_damaged_file_is_a_miss(
    spoil: Callable[[Path], None], checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    engine = engine_of(checkpoint("llama"), tmp_path)
    expected, _ = answer(engine)
    engine.close()
    files = stored(tmp_path)
    assert len(files) == (len(PROMPT) + 12 - 1) // BLOCK_TOKENS
    for file in files:
        spoil(file)
    again = engine_of(checkpoint("llama"), tmp_path)
    assert answer(again) == (expected, 0)
    again.close()
    healed = engine_of(checkpoint("llama"), tmp_path)
    assert answer(healed) == (expected, FULL)
    healed.close()


def test_blocks_before_a_damaged_file_are_used(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    engine = engine_of(checkpoint("llama"), tmp_path)
    expected, _ = answer(engine)
    engine.close()
    by_age = sorted(stored(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    flip(-1)(by_age[-4])  # the first ones of a prefix are the latest used
    again = engine_of(checkpoint("llama"), tmp_path)
    text, cached = answer(again)
    assert text == expected
    assert cached == 3 * BLOCK_TOKENS
    assert again.stats.prefix_disk_damaged_files == 1
    again.close()


def test_tenants_never_share_blocks(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """Not even if one's files have the other's names."""
    folder = checkpoint("llama")
    for salt in ("mine", "theirs"):
        engine = engine_of(folder, tmp_path / salt)
        expected, _ = answer(engine, salt)
        engine.close()
    engine = engine_of(folder, tmp_path / "mine")
    assert answer(engine, "theirs") == (expected, 0)
    engine.close()
    shutil.rmtree(tmp_path / "mine")
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    for theirs in stored(tmp_path / "theirs"):
        shutil.copy(
            stored(tmp_path / "theirs")[0],
            tmp_path / "mine" / theirs.relative_to(tmp_path / "theirs"),
        )
    engine = engine_of(folder, tmp_path / "mine")
    assert answer(engine, "theirs")[0] == expected
    engine.close()


def test_models_and_types_never_share_blocks(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """Not even if one's files are in the other's folder: other weights, KV type or executor."""
    tier, other = tmp_path / "tier", tmp_path / "other"
    folder, changed = checkpoint("llama"), tmp_path / "changed"
    shutil.copytree(folder, changed)
    weights = changed / "model.safetensors"
    flip(-1)(weights)
    first = engine_of(folder, tier)
    answer(first)
    first.close()
    for where, chosen in ((changed, {}), (folder, {"kv_dtype": "bfloat16"})):
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(tier, other)
        engine = engine_of(where, other, **chosen)
        expected, _ = answer(engine_of(where, None, **chosen))
        assert answer(engine) == (expected, 0)
        engine.close()
        [own] = [path for path in other.iterdir() if not (tier / path.name).exists()]
        shutil.rmtree(own)
        (other / next(tier.iterdir()).name).rename(own)
        engine = engine_of(where, other, **chosen)
        assert answer(engine) == (expected, 0)
        assert engine.stats.prefix_disk_damaged_files > 0
        engine.close()


def test_equal_requests_load_a_prefix_once(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder = checkpoint("llama")
    engine = engine_of(folder, tmp_path)
    answer(engine)
    engine.close()
    engine = engine_of(folder, tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=4, n=3)
    texts = run(engine, expand(PROMPT, params, engine.info, request_id="r"))
    assert [outputs[-1].cached_tokens for outputs in texts.values()] == [FULL] * 3
    assert engine.stats.prefix_disk_hit_tokens == FULL
    assert engine.stats.waiting == 0
    engine.close()


def test_aborting_what_waits_for_the_disk_leaves_nothing(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint("llama")
    engine = engine_of(folder, tmp_path)
    expected, _ = answer(engine)
    engine.close()
    engine = engine_of(folder, tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=4, n=2)
    made = expand(PROMPT, params, engine.info, request_id="gone")
    for steps in range(4):  # while files are counted, read, and after that
        for one in made:
            engine.add(one)
        for _ in range(steps):
            engine.step()
        engine.abort([one.id for one in made])
        while engine.has_work:
            engine.step()
            engine.check_blocks()
        assert engine.stats.kv_used_blocks == 0
    assert answer(engine)[0] == expected
    engine.close()


def test_a_writer_that_is_killed_leaves_whole_files_alone(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for kill in range(8 if THOROUGH else 2):
        command = [sys.executable, "-m", "tests.engine.prefix_writer", str(tmp_path)]
        process = subprocess.Popen(
            [*command, str(kill * 10_000)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(20 + 7 * kill)]
        process.kill()
        process.communicate()
        names = {int(path.stem, 16) for path in stored(tmp_path)}
        assert names.issuperset(reported)
        for number in names:
            found = files.read(block(number))
            assert found is not None
            assert (found == number % 251).all()
    assert files.damaged == 0
    abandoned = files.path(block(1).key).with_suffix(".0123abcd.partial")
    abandoned.write_text("half")
    os.utime(abandoned, (0, 0))
    files.trim()
    assert not abandoned.exists()


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wished=st.lists(st.tuples(PROMPTS, WISHES), min_size=1, max_size=5),
    tokens=st.sampled_from([96, 512]),
    variant=st.sampled_from(["llama", "qwen2-window"]),
)
def test_texts_are_those_without_a_tier(
    wished: list[tuple[list[int], dict[str, Any]]],
    tokens: int,
    variant: str,
    checkpoint: CheckpointMaker,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """In a cache that is too small, so that blocks come and go, by engines that share a folder."""
    folder, tier = checkpoint(variant), tmp_path_factory.mktemp("tier")
    plain = engine_of(folder, None, kv_cache_tokens=1024)
    made = [request(i, *wish, plain) for i, wish in enumerate(wished)]
    expected = seen(run(plain, made))
    for _ in range(2):
        engine = engine_of(folder, tier, kv_cache_tokens=tokens, max_batch_tokens=24, max_running=4)
        for _ in range(2):
            assert seen(run(engine, made)) == expected
        engine.close()


def test_the_folder_stays_within_its_bytes(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder = checkpoint("llama")
    first = engine_of(folder, tmp_path)
    answer(first)
    first.close()
    size = stored(tmp_path)[0].stat().st_size
    engine = engine_of(folder, tmp_path, prefix_cache_dir_bytes=12 * size, kv_cache_tokens=224)
    for salt in ("a", "b", "c"):
        answer(engine, salt)
    engine.close()
    assert 0 < len(stored(tmp_path)) <= 12
    assert sum(file.stat().st_size for file in stored(tmp_path)) <= 12 * size
    assert engine.stats.prefix_disk_bytes == sum(f.stat().st_size for f in stored(tmp_path))


def test_files_of_others_in_the_folder_are_not_removed(tmp_path: Path) -> None:
    """Other programs have files named .kv, too, and the folder may be one in which people work."""
    form = BlockForm(b"m" * 16, kv_dtype="float32", block_bytes=(SIZE,))
    files = PrefixFiles(tmp_path, form, most_bytes=SIZE)
    places = [tmp_path, tmp_path / "app", tmp_path / (b"m" * 16).hex(), tmp_path / "ab" / "cd"]
    foreign = [place / name for place in places for name in ("main.kv", "ab.kv", "x.partial")]
    foreign.append(files.path(b"k" * 16).parent / "main.kv")
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(2 * SIZE))
        os.utime(file, (0, 0))
    for number in range(3):
        files.write(block(number), np.zeros(SIZE, np.uint8))
    files.trim()
    assert all(file.exists() for file in foreign)
    assert files.bytes <= SIZE
    assert not any(files.exists(block(number).key) for number in range(3))


@pytest.mark.parametrize("below", [".", (b"m" * 16).hex()], ids=["folder", "model"])
def test_a_folder_that_everyone_can_write_to_is_refused(tmp_path: Path, below: str) -> None:
    files_in(tmp_path)
    (tmp_path / below).chmod(0o777)
    with pytest.raises(PermissionError, match=r"everyone can write to .*chmod o-w"):
        files_in(tmp_path)


def test_kept_prefixes_are_the_last_to_be_removed(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """As soon as they are written, and also if the blocks left memory before."""
    folder = checkpoint("llama")
    engine = engine_of(folder, tmp_path, kv_cache_tokens=224)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    [made] = expand(PROMPT, params, engine.info, request_id="r")
    run(engine, [msgspec.structs.replace(made, keep_seconds=3600.0)])
    for salt in ("a", "b"):
        answer(engine, salt)
    engine.close()
    ahead = [file for file in stored(tmp_path) if file.stat().st_mtime > time.time() + 3000]
    assert len(ahead) == FULL // BLOCK_TOKENS
    size = stored(tmp_path)[0].stat().st_size
    again = engine_of(folder, tmp_path, prefix_cache_dir_bytes=16 * size)
    answer(again, "c")
    again.close()
    assert set(ahead) <= set(stored(tmp_path))


def test_a_disk_that_fails_costs_no_text(
    checkpoint: CheckpointMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(checkpoint("llama"), tmp_path)
    [own] = tmp_path.iterdir()
    own.rmdir()
    own.write_text("a file, where the folder was")
    expected, _ = answer(engine_of(checkpoint("llama"), None))
    for _ in range(2):
        assert answer(engine)[0] == expected
    engine.close()
    assert len([r for r in caplog.records if "cannot write to" in r.getMessage()]) == 1
    assert engine.stats.prefix_disk_dropped_blocks > 0


@pytest.mark.parametrize(
    ("variant", "chosen", "message"),
    [
        ("llama", {"prefix_cache": False}, "prefix_cache is off"),
        ("llama", {"prefix_cache_dir_bytes": 100}, "prefix_cache_dir_bytes is 100"),
        ("granite-hybrid", {}, "recurrent layers"),
        ("whisper", {}, "speech model"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    variant: str,
    chosen: dict[str, Any],
    message: str,
    checkpoint: CheckpointMaker,
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match=message):
        engine_of(checkpoint(variant), tmp_path, **chosen)


def test_a_folder_that_cannot_be_made_is_refused(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"prefix_cache_dir is .*Not a directory"):
        engine_of(checkpoint("llama"), tmp_path / "file" / "folder")
