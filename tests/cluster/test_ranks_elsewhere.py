"""Ranks of a model on other machines: processes of ``galley rank``, reached over TCP."""

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.engine.loaders import load_engine
from galley.engine.parallel import remote
from galley.engine.parallel.cpus import cpus_of_ranks
from galley.engine.parallel.elsewhere import Reception
from galley.engine.parallel.frames import Begin, encode
from galley.engine.parallel.mesh import Join, join, new_session
from galley.errors import EngineFailed, ModelError, SettingsError
from galley.formats.model_files import samples_digest
from galley.links.access import Access
from galley.links.sockets import SealedSocket
from galley.ops.communicator import SLOT_BYTES
from galley.ops.executor import forward
from galley.service import rank_host
from galley.service.client import EngineClient
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.values import address_text, parsed_address
from tests.cluster.admin import ADMIN, ADMIN_KEY
from tests.cluster.authority import Authority
from tests.cluster.intruders import check_intruders
from tests.cluster.rank import Rank, ranks
from tests.conftest import CheckpointMaker
from tests.native.harness import ragged
from tests.server.serving import Server, events, until
from tests.service import rank_texts

TOKENS = 300
SECRET = "a secret of both machines"
ACCESS = Access(SECRET.encode(), None, None)


@pytest.fixture
def token(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "token"
    path.write_text(SECRET)
    return {"cluster_token_file": str(path)}


def settings(folder: Path, **more: Any) -> EngineSettings:
    return rank_texts.settings(folder, **({"weight_cache": False} | more))


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
            streams = [client.submit(one) for one in rank_texts.requests(client.info, 3, TOKENS)]
            first = (await anext(streams[0])).tokens
            for rank in elsewhere:
                rank.worker.kill()
                while client.state == "ready":
                    await asyncio.sleep(0.01)
                await client.ready()
            texts = await asyncio.gather(*map(rank_texts.tokens_of, streams))
            assert client.restarts == 2
            return [[*first, *texts[0]], *texts[1:]]
        finally:
            await client.close()

    with ranks(folder, tmp_path, token, 2) as elsewhere:
        assert asyncio.run(run(elsewhere)) == rank_texts.texts_of_one_process(folder, 3, TOKENS)


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
    caplog: pytest.LogCaptureFixture,
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
        assert f"waiting for the rank at {same.address}: " in caplog.text
        monkeypatch.undo()
    with (
        ranks(other, tmp_path, token, 1) as [another],
        pytest.raises(ModelError, match="is not the engine's checkpoint"),
    ):
        load(another)


def test_a_rank_uses_the_revision_that_there_is_when_the_engine_starts(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    """A branch of the hub moves on while the rank waits, as before a reload."""
    cached = tmp_path / "hub" / "models--org--name"
    commits = {"a" * 40: "llama", "b" * 40: "llama-mha-tied"}
    for commit, variant in commits.items():
        shutil.copytree(checkpoint(variant), cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    branch = cached / "refs" / "main"
    branch.write_text("a" * 40)
    environ = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    rank = Rank(Path("org/name"), tmp_path / "log", token, **environ)
    try:
        for commit in commits:
            branch.write_text(commit)
            folder = cached / "snapshots" / commit
            chosen: dict[str, Any] = {"tensor_parallel_rank": (rank.address,), **token}
            load_engine(settings(folder, tensor_parallel=2, **chosen), folder).close()
    finally:
        rank.close()


def test_a_byte_that_no_sample_has_is_noticed_before_the_first_step(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    folder, other = tmp_path / "ours", tmp_path / "other"
    shutil.copytree(checkpoint("llama"), folder)
    large = bytearray(12 << 20)
    (folder / "more.bin").write_bytes(large)
    shutil.copytree(folder, other)
    large[5000] ^= 1
    (other / "more.bin").write_bytes(large)
    assert samples_digest(folder) == samples_digest(other)
    chosen: dict[str, Any] = {"tensor_parallel": 2, **token}
    with ranks(other, tmp_path, token, 1) as [rank]:
        with pytest.raises(ModelError, match=f"rank 1 at {rank.address} .* other contents"):
            load_engine(settings(folder, tensor_parallel_rank=(rank.address,), **chosen), folder)
        large[5000] ^= 1
        (other / "more.bin").write_bytes(large)
        load_engine(
            settings(folder, tensor_parallel_rank=(rank.address,), **chosen), folder
        ).close()


def test_a_rank_says_which_of_its_own_settings_does_not_fit(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    folder = checkpoint("mixtral")
    with ranks(folder, tmp_path, token, 1) as [rank]:
        chosen = settings(
            folder,
            tensor_parallel=2,
            tensor_parallel_rank=(rank.address,),
            experts="disk",
            weight_cache=True,
            **token,
        )
        said = f"rank 1 at {rank.address}: experts is disk, but weight_cache is off"
        with pytest.raises(SettingsError, match=said):
            load_engine(chosen, folder)


def test_a_rank_is_free_once_its_engine_has_gone(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    """Rank 0 is gone while rank 2 waits for rank 1, which never comes."""
    folder = checkpoint("llama")
    session = new_session()
    begin = Begin(
        settings=settings(folder, tensor_parallel=3),
        folder=str(folder),
        rank=2,
        ranks=3,
        slot_bytes=SLOT_BYTES,
        cpus=(),
        expert_cache_bytes=0,
        ops="",
        session=session,
        samples=samples_digest(folder),
    )
    with ranks(folder, tmp_path, token, 1) as [rank]:
        worker = rank.worker
        engine = joined(rank.address, Join(session, 0, rows=False))
        engine.send(encode(begin))
        engine.close()
        until(lambda: rank.worker != worker, 20)


def test_a_reload_has_the_ranks_of_both_engines_for_a_while(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    """The new engine is loaded while the old one streams; an engine of another server is not let in."""
    folder = checkpoint("llama")
    body = {"model": "m", "prompt": [5, 6], "max_tokens": 400, "seed": 1, "ignore_eos": True}
    with (
        ranks(folder, tmp_path, token, 1) as [rank],
        Server(
            [f"m={folder}"],
            tmp_path / "server",
            threads=1,
            tensor_parallel=2,
            tensor_parallel_rank=rank.address,
            weight_cache=False,
            admin_key=ADMIN_KEY,
            cluster_token_file=token["cluster_token_file"],
        ) as server,
        server.client() as client,
    ):
        alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        until(lambda: len(rank.workers) == 2)
        first, waiting = rank.workers
        with pytest.raises(EngineFailed, match="see that no other engine uses it"):
            joined(rank.address, Join(new_session(), 0, rows=False, owner=bytes(range(16))), 1)
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            pieces = (json.loads(data) for data in events(answer) if data != "[DONE]")
            text = next(pieces)["choices"][0]["text"]
            reloaded = client.post("/admin/reload", json={"model": "m"}, headers=ADMIN, timeout=60)
            assert reloaded.status_code == 200, reloaded.text
            text += "".join(piece["choices"][0]["text"] for piece in pieces)
        assert text == alone
        until(lambda: not first.is_running())
        assert rank.worker == waiting
        again = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert again == alone
    assert "Traceback" not in server.log


def test_those_without_the_token_keep_no_engine_out(
    checkpoint: CheckpointMaker, tmp_path: Path, token: dict[str, str]
) -> None:
    with ranks(checkpoint("llama"), tmp_path, token, 1) as [rank]:
        host, port = parsed_address(rank.address)
        idle = [socket.create_connection((host, port)) for _ in range(100)]
        check_intruders([port], tmp_path / "trap")
        joined(rank.address, Join(new_session(), 0, rows=False)).close()
        for one in idle:
            one.close()
        assert "Traceback" not in (tmp_path / "rank-0").read_text()


class Exhausted(socket.socket):
    """A listening socket for which there is no descriptor at first."""

    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.tries == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_a_rank_takes_connections_after_errors_and_groups_that_never_began() -> None:
    listener = Exhausted()  # stays open: a thread accepts connections until this process ends
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    reception = Reception(listener, ACCESS)
    held = [joined(address, Join(new_session(), 1, rows=True)) for _ in range(70)]
    last = Join(new_session(), 0, rows=False)
    held.append(joined(address, last))
    assert reception.leader()[0] == last
    assert listener.tries > len(held)
    for one in held:
        one.close()


def joined(address: str, what: Join, seconds: float = 6) -> SealedSocket:
    return join(parsed_address(address), ACCESS, what, time.monotonic() + seconds)


def test_a_signal_before_the_fork_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        supervisor = rank_host._Supervisor(Settings(), ACCESS, listener)

        def block(how: int, signals: set[signal.Signals]) -> None:
            supervisor._stop()  # as a handler does that runs now

        monkeypatch.setattr(signal, "pthread_sigmask", block)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(os, "fork", lambda: pytest.fail("it must not fork"))
        assert supervisor.run() == 0


def test_a_rank_waits_until_a_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    with socket.socket() as listener:
        supervisor = rank_host._Supervisor(Settings(), ACCESS, listener)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(os, "fork", fork)
        monkeypatch.setattr(time, "sleep", lambda _: supervisor._stop())
        assert supervisor.run() == 0


def test_an_address_that_is_printed_can_be_given() -> None:
    for host in ("10.0.0.8", "::1", "machine"):
        assert parsed_address(address_text(host, 8600)) == (host, 8600)


def test_settings_of_ranks_elsewhere_fit_together(tmp_path: Path) -> None:
    address = ("10.0.0.8:8600",)
    with pytest.raises(SettingsError, match="tensor_parallel is 1, but tensor_parallel_rank"):
        EngineSettings(tensor_parallel_rank=address)
    with pytest.raises(SettingsError, match=r"tensor_parallel_rank: 'x' is not HOST:PORT"):
        EngineSettings(tensor_parallel=2, tensor_parallel_rank=("x",))
    with pytest.raises(SettingsError, match=r"tensor_parallel_rank names 10.0.0.8:8600 twice"):
        EngineSettings(tensor_parallel=3, tensor_parallel_rank=address * 2)
    with pytest.raises(SettingsError, match="has 2 lists of CPUs, but there are 1 ranks on this"):
        cpus_of_ranks(("0", "0"), 1)
    with pytest.raises(SettingsError, match="replicas is 2, but the ranks of"):
        Settings(tensor_parallel=2, tensor_parallel_rank=address, replicas=2)
    with pytest.raises(SettingsError, match="need cluster_token_file"):
        remote.RemoteRanks(
            EngineSettings(tensor_parallel=2, tensor_parallel_rank=address), tmp_path
        )
