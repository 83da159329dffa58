"""Ranks of a model on other machines: processes of ``galley rank``, reached over TCP."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from galley import SamplingParams
from galley.engine.loaders import load_engine
from galley.engine.parallel import remote
from galley.errors import EngineFailed, ModelError, SettingsError
from galley.ops.executor import forward
from galley.service.client import EngineClient
from galley.service.requests import expand
from galley.service.streams import OutputStream
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest
from galley.types.model_info import ModelInfo
from tests.cluster.authority import Authority
from tests.conftest import CheckpointMaker
from tests.native.harness import ragged
from tests.server.serving import until

TOKENS = 300


class Rank:
    """A ``galley rank`` process."""

    def __init__(self, folder: Path, log: Path, links: dict[str, str], **environ: str) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in links.items()]
        command = [sys.executable, "-m", "galley", "rank", str(folder), "--port=0", "--threads=1"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--no-weight-cache", *flags],
                stdout=file,
                stderr=file,
                env={**os.environ, **environ},
            )

        def address() -> str | None:
            assert self.process.poll() is None, log.read_text()
            found = log.read_text().partition("ready for an engine at ")[2].split()
            return found[0] if found else None

        self.address = str(until(address, 60))

    @property
    def worker(self) -> psutil.Process:
        """The process that computes."""
        found = until(psutil.Process(self.process.pid).children, 60)
        return found[0]

    def close(self) -> None:
        """End it; the process that computes ends, too."""
        worker = self.worker
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert until(lambda: not worker.is_running(), 10)


@pytest.fixture
def token(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "token"
    path.write_text("a secret of both machines")
    return {"cluster_token_file": str(path)}


@contextmanager
def ranks(folder: Path, tmp_path: Path, links: dict[str, str], count: int) -> Iterator[list[Rank]]:
    with ExitStack() as stack:
        made = []
        for i in range(count):
            made.append(Rank(folder, tmp_path / f"rank-{i}", links))
            stack.callback(made[-1].close)
        yield made


def settings(folder: Path, **more: Any) -> EngineSettings:
    chosen: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 4096, "weight_cache": False}
    return EngineSettings(model=str(folder), **(chosen | more))


def requests(info: ModelInfo) -> list[EngineRequest]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=TOKENS, ignore_eos=True)
    return [expand([5, 6, i], params, info, request_id=f"r{i}")[0] for i in range(3)]


def texts_of_one_process(folder: Path) -> list[list[int]]:
    engine = load_engine(settings(folder), folder)
    made = requests(engine.info)
    texts: dict[str, list[int]] = {one.id: [] for one in made}
    for one in made:
        engine.add(one)
    while engine.has_work:
        for output in engine.step():
            texts[output.request_id] += output.tokens
    return list(texts.values())


async def tokens(stream: OutputStream) -> list[int]:
    return [token async for output in stream for token in output.tokens]


def test_killing_a_rank_elsewhere_loses_no_stream(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    """Of three ranks one is in the engine's process, and two are reached over TCP."""
    folder = checkpoint("mistral-window")

    async def run(elsewhere: list[Rank]) -> list[list[int]]:
        addresses = tuple(rank.address for rank in elsewhere)
        chosen = settings(folder, tensor_parallel=3, tensor_parallel_rank=addresses, **token)
        client = await EngineClient.start(chosen, str(folder), max_queue=4)
        try:
            streams = [client.submit(one) for one in requests(client.info)]
            first = (await anext(streams[0])).tokens
            for rank in elsewhere:
                rank.worker.kill()
                while client.state == "ready":
                    await asyncio.sleep(0.01)
                await client.ready()
            texts = await asyncio.gather(*map(tokens, streams))
            assert client.restarts == 2
            return [[*first, *texts[0]], *texts[1:]]
        finally:
            await client.close()

    with ranks(folder, tmp_path, token, 2) as elsewhere:
        assert asyncio.run(run(elsewhere)) == texts_of_one_process(folder)


def test_encrypted_rows_have_the_same_bits_with_a_rank_here_and_one_elsewhere(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    """A mixture of experts, in chunks of a few rows, for several engines one after the other."""
    folder = checkpoint("mixtral")
    links = Authority(tmp_path, "ours").files(Path(token["cluster_token_file"]))
    batch = ragged([(list(range(5, 5 + n)), n) for n in (1, 19, 40)], first_block=0)
    alone = load_engine(settings(folder), folder)
    expected = forward(alone._executor, batch).copy()
    with ranks(folder, tmp_path, links, 1) as elsewhere:
        for _ in range(2):
            chosen = settings(
                folder,
                tensor_parallel=3,
                tensor_parallel_rank=(elsewhere[0].address,),
                **links,
            )
            engine = load_engine(chosen, folder)
            try:
                assert np.array_equal(forward(engine._executor, batch), expected)
                whole, part = alone.info.ledger, engine.info.ledger
                assert whole is not None
                assert part is not None
                assert part.weights < whole.weights  # one of three parts is elsewhere
            finally:
                engine.close()


def test_a_rank_that_does_not_fit_is_refused_by_name(
    checkpoint: CheckpointMaker,
    tmp_path: Path,
    token: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, other = checkpoint("llama"), tmp_path / "other"
    shutil.copytree(folder, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)

    def load(rank: Rank, **more: Any) -> None:
        chosen: dict[str, Any] = {"tensor_parallel_rank": (rank.address,), **token, **more}
        load_engine(settings(folder, tensor_parallel=2, **chosen), folder).close()

    wrong = tmp_path / "wrong"
    wrong.write_text("a secret of nobody else")
    with ranks(folder, tmp_path, token, 1) as [same]:
        with pytest.raises(SettingsError, match="the token of cluster_token_file is another one"):
            load(same, cluster_token_file=str(wrong))
        worker = same.worker
        load(same)
        until(lambda: same.worker != worker)
        same.worker.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(remote, "START_SECONDS", 0.5)
        with pytest.raises(EngineFailed, match=f"the rank at {same.address} cannot be reached"):
            load(same)
        monkeypatch.undo()
    with (
        ranks(other, tmp_path, token, 1) as [another],
        pytest.raises(ModelError, match="is not the engine's checkpoint"),
    ):
        load(another)


def test_settings_of_ranks_elsewhere_fit_together(tmp_path: Path) -> None:
    address = ("10.0.0.8:8600",)
    with pytest.raises(SettingsError, match="tensor_parallel is 1, but tensor_parallel_rank"):
        EngineSettings(tensor_parallel_rank=address)
    with pytest.raises(SettingsError, match=r"tensor_parallel_rank: 'x' is not HOST:PORT"):
        EngineSettings(tensor_parallel=2, tensor_parallel_rank=("x",))
    with pytest.raises(SettingsError, match="replicas is 2, but the ranks of"):
        Settings(tensor_parallel=2, tensor_parallel_rank=address, replicas=2)
    with pytest.raises(SettingsError, match="need cluster_token_file"):
        remote.RemoteRanks(
            EngineSettings(tensor_parallel=2, tensor_parallel_rank=address), tmp_path
        )
