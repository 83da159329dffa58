"""Without what only Linux has, as on macOS: /proc, CPU affinity, memfd files, SOCK_SEQPACKET."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from galley.errors import AudioError, RequestError
from galley.service.text_pool import TextPool
from galley.settings.config import Settings
from galley.speech.decoder import Decoder
from tests.conftest import CheckpointMaker
from tests.missing import without_linux
from tests.server.serving import Server
from tests.service.exploding import make_exploding_tokenizer
from tests.speech import tiny
from tests.speech.hostile_files import TOO_MUCH
from tests.speech.recordings import brief

MIB = 2**20

IMPORT_ALL = """
import importlib, pkgutil, galley

def imported(path, prefix):
    for module in pkgutil.iter_modules(path, prefix):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.startswith("galley"):
                raise
            continue  # of an extra
        yield module.name
        if module.ispkg:
            yield from imported(loaded.__path__, module.name + ".")

print(len(list(imported(galley.__path__, "galley."))))
"""


def test_all_modules_can_be_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        env=os.environ | without_linux(tmp_path, "resource", "torch", "triton", "transformers"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 600


@pytest.mark.parametrize("missing", [(), ("resource", "fcntl")], ids=["macOS", "neither module"])
def test_the_bundled_model_answers(missing: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "galley", "run", "What is a KV cache?"],
        env=os.environ | without_linux(tmp_path, *missing),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "keys and values" in done.stdout


def test_a_server_chats_and_transcribes(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """Engines that take turns on the cores, text workers and the decoder of recordings."""
    speech = tmp_path / "speech"
    speech.mkdir()
    tiny.make_whisper(speech)
    models = [f"text={checkpoint('llama')}", f"speech={speech}"]
    environ = without_linux(tmp_path, "resource")
    with Server(models, tmp_path / "log", environ=environ, threads=1, take_turns=True) as server:
        client = server.openai()
        chat = client.chat.completions.create(
            model="text", messages=[{"role": "user", "content": "cat"}], max_completion_tokens=4
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 4
        transcript = client.audio.transcriptions.create(
            model="speech", file=("call.wav", brief()), response_format="verbose_json"
        )
        assert transcript.duration == 1.0
        metrics = server.metrics()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert metrics["galley_memory_limit_bytes"] == total
    assert metrics["galley_memory_available_bytes"] == total // 2


def test_recordings_have_a_budget_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in without_linux(tmp_path).items():
        monkeypatch.setenv(name, value)
    make, says = TOO_MUCH["trun-large"]
    with Decoder(seconds=60, max_bytes=128 * MIB) as decoder:
        with pytest.raises(AudioError, match=says):
            list(decoder.open(make()))
        assert sum(map(len, decoder.open(brief()))) == 16_000


def test_texts_have_a_budget_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_exploding_tokenizer(tmp_path)
    for name, value in without_linux(tmp_path).items():
        monkeypatch.setenv(name, value)

    async def work() -> None:
        settings = Settings(text_bytes=128 * MIB, text_seconds=60.0)
        pool = TextPool(settings, "tiny", tmp_path, unchanged=lambda: True)
        try:
            with pytest.raises(RequestError, match="the available memory"):
                await pool.of().encode(["§"])
            await pool.of().encode(["b"])
        finally:
            await pool.close()

    asyncio.run(work())
