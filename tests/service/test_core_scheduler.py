"""Turns on the cores, with real processes: exclusive, fair by time, live audio first, robust to kills."""

import itertools
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from galley.service.core_scheduler import MOST_OWED, core_scheduler_file
from tests.server.serving import until

PLAYER = Path(__file__).with_name("core_scheduler_player.py")

Start = Callable[..., "subprocess.Popen[bytes]"]


ENGINES = 3


@pytest.fixture
def file() -> Iterator[int]:
    """The file shared by a test's engines."""
    file = core_scheduler_file(ENGINES)
    yield file
    os.close(file)


@pytest.fixture
def start(file: int, tmp_path: Path) -> Iterator[Start]:
    """``start(name, seconds, pieces)`` starts an engine that needs the cores for its pieces of work."""
    places = itertools.count()
    with ExitStack() as stack:

        def player(
            name: str, seconds: float, pieces: int = 10**9, kind: str = "calm"
        ) -> "subprocess.Popen[bytes]":
            work = (name, seconds, pieces, kind)
            process = subprocess.Popen(
                [sys.executable, PLAYER, *map(str, (file, next(places), tmp_path, *work))],
                pass_fds=[file],
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield player


def turns(folder: Path) -> list[tuple[str, float]]:
    """Return which engine computed, and for how long, in order."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(name, float(seconds)) for name, seconds in map(str.split, lines)]


def count(folder: Path, name: str) -> int:
    return sum(who == name for who, _ in turns(folder))


def waiting(file: int) -> list[bool]:
    """Return for each engine whether it waits for the cores; that is the last third of the file."""
    accounts = memoryview(os.pread(file, os.fstat(file).st_size, 0)).cast("d")
    return [bool(waits) for waits in accounts[-ENGINES:]]


def shares(folder: Path) -> dict[str, float]:
    """Return each engine's seconds from the last engine's first turn to the first engine's last turn."""
    log = turns(folder)
    names = [name for name, _ in log]
    begin = max(names.index(name) for name in set(names))
    end = min(len(names) - names[::-1].index(name) for name in set(names))
    return {
        name: sum(seconds for who, seconds in log[begin:end] if who == name) for name in set(names)
    }


def test_one_at_a_time_and_all_finish(start: Start, tmp_path: Path) -> None:
    players = [start(name, 0.004, 60) for name in ("a", "b", "c")]
    assert [player.wait(120) for player in players] == [0, 0, 0]
    assert [count(tmp_path, name) for name in ("a", "b", "c")] == [60, 60, 60]


def test_long_pieces_get_no_more_than_short_ones(start: Start, tmp_path: Path) -> None:
    """If turns merely alternated, the long ones would get thirteen times as much."""
    start("short", 0.003)
    until(lambda: count(tmp_path, "short") > 0)
    assert start("long", 0.040, 25).wait(120) == 0
    share = shares(tmp_path)
    assert 0.5 < share["long"] / share["short"] < 2


@pytest.mark.parametrize("third", ["idle", "busy"])
def test_long_pieces_get_no_larger_share_than_two_others(
    start: Start, tmp_path: Path, third: str
) -> None:
    if third == "idle":
        assert start("third", 0.001, 1).wait(120) == 0
        (tmp_path / "log").unlink()
    else:
        start("third", 0.003)
    start("short", 0.003)
    until(lambda: count(tmp_path, "short") > 0)
    assert start("long", 0.040, 25).wait(120) == 0
    share = shares(tmp_path)
    assert share["long"] < 2 * share["short"]


def test_a_delayed_process_owes_little(start: Start, tmp_path: Path) -> None:
    """A minute in an op is not computing: the process or the machine was suspended."""
    start("short", 0.003)
    until(lambda: count(tmp_path, "short") > 0)  # or the other is gone before it arrives
    assert start("held-up", 60.0, 3).wait(120) == 0
    assert shares(tmp_path)["short"] < 2 * (MOST_OWED + 0.1)


def test_live_audio_gets_most_of_the_time_and_others_do_not_starve(
    start: Start, tmp_path: Path
) -> None:
    start("live", 0.002, kind="live")
    assert start("calm", 0.002, 60).wait(120) == 0
    share = shares(tmp_path)
    assert 2 < share["live"] / share["calm"] < 8


def test_live_audio_that_comes_is_next(start: Start, tmp_path: Path) -> None:
    """It does not wait for the end of a turn, which has ten pieces here."""
    start("calm", 0.001)
    assert start("live", 0.001, 40, kind="burst").wait(120) == 0
    names = [name for name, _ in turns(tmp_path)]
    comes = [i for i, name in enumerate(names) if name == "live-comes"]
    waits = [names.index("live", i) - i - 1 for i in comes]
    assert statistics.median(waits) <= 2


@pytest.mark.parametrize("state", ["holds", "waits"])
def test_a_killed_engine_leaves_nothing_behind(
    start: Start, file: int, tmp_path: Path, state: str
) -> None:
    holder = start("holder", 0.001, kind="stuck")
    until(lambda: count(tmp_path, "holder"), 60)
    waiter = start("waiter", 0.001)
    other = start("other", 0.001, 20)
    until(lambda: waiting(file) == [False, True, True], 60)
    assert count(tmp_path, "waiter") == count(tmp_path, "other") == 0
    victims = [holder] if state == "holds" else [waiter, holder]
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert other.wait(120) == 0
    assert count(tmp_path, "other") == 20


def test_a_process_that_died_waiting_is_not_waited_for(
    start: Start, file: int, tmp_path: Path
) -> None:
    """Its account shows it waiting for ever, with its turn unused; the next one owes half a second."""
    holder = start("holder", 0.001, kind="stuck")
    until(lambda: count(tmp_path, "holder"), 60)
    waiter = start("waiter", 0.001)
    until(lambda: waiting(file) == [False, True, False], 60)
    for victim in (waiter, holder):
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert start("owes", 0.500, 20, kind="burst").wait(60) == 0
    assert count(tmp_path, "owes") == 20
    assert waiting(file) == [False, True, False]
