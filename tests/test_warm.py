"""Warm processes are what cold ones are: files, variables, signals, exit codes, engines of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.checkpoints import make_checkpoint
from tests.cli.command import environment
from tests.forks import Fork
from tests.server.serving import Server, until

pytestmark = pytest.mark.skipif(not warm.possible(), reason="all processes start cold here")

LONG = ("plan", "org/none", "--no-such-flag")


def cold(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "galley", *words]
    return subprocess.run(
        command,
        env=environment(),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("words", [("--version",), LONG, ("serve",)], ids=" ".join)
def test_a_command_says_and_returns_what_a_cold_one_does(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "galley.yaml").write_text("prot: 1")  # serve reads it in its folder
    found = warm.run(words, environ=environment(), cwd=tmp_path)
    assert found is not None
    expected = cold(*words, cwd=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )


def test_variables_are_its_own_and_those_that_imports_read_need_a_cold_start(
    tmp_path: Path,
) -> None:
    limit = {"GALLEY_MAX_RUNNING": "many"}
    done = warm.run(["serve"], environ=environment(**limit), cwd=tmp_path)
    assert done is not None
    assert (done.returncode, "GALLEY_MAX_RUNNING" in done.stderr) == (2, True)
    for name in ("PYTHONPATH", "HF_HOME", "XDG_CACHE_HOME", "OMP_NUM_THREADS"):
        assert warm.run(["--version"], environ=environment(**{name: str(tmp_path)})) is None


def test_variables_that_a_test_or_its_imports_set_change_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert warm.run(["--version"], environ=environment()) is None
    monkeypatch.undo()
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    assert warm.run(["--version"], environ=environment()) is not None


def test_ctrl_c_in_the_terminal_ends_commands_and_not_their_parent() -> None:
    assert warm.run(["--version"], environ=environment()) is not None
    [parent] = [p for p in psutil.Process().children() if "tests.warm_parent" in p.cmdline()]
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(read, "rb"), open(write, "wb", buffering=0) as full, open(os.devnull, "wb") as null:
        while full.write(bytes(4096)):
            pass
        os.set_blocking(write, True)
        command = warm.start(["--help"], environ=environment(), stdout=full, stderr=null)
        assert command is not None

        def interrupted() -> bool:
            command.send_signal(signal.SIGINT)
            return command.poll() is not None

        try:
            parent.send_signal(signal.SIGINT)
            # One may come too early for the command, which waits until someone reads.
            until(interrupted)
        finally:
            command.kill()
    assert warm.run(["--version"], environ=environment()) is not None
    assert parent.is_running()


def test_a_server_and_its_engine_are_processes_that_signals_reach(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    with Server(folder, tmp_path / "log", threads=1, kv_cache_tokens=1024) as server:
        assert isinstance(server.process, Fork)
        process = psutil.Process(server.process.pid)
        assert process.cmdline()[1:5] == ["-m", "galley", "serve", str(folder)]
        [engine] = server.children()
        assert (engine.ppid(), engine.cmdline()[1:3]) == (
            process.pid,
            ["-m", "galley.service.worker"],
        )
        # Neither has files of the other, of the parent, or of this process.
        assert {file.path for file in process.open_files()} == {str(tmp_path / "log")}
        assert not engine.net_connections("tcp")
        engine.kill()
        until(lambda: server.metrics()["galley_engine_restarts_total"] == 1)
        [other] = until(lambda: [p for p in server.children() if p.pid != engine.pid])
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0)
        assert server.process.poll() is None
        assert server.stop(signal.SIGTERM) == 0
        assert psutil.wait_procs([other], timeout=30)[1] == []
    with Server(folder, tmp_path / "log", threads=1, kv_cache_tokens=1024) as server:
        server.process.kill()
        assert server.process.wait(30) == -signal.SIGKILL
        server.process.kill()  # of a process that has ended: nothing
