"""Tensors in memory that a server and an engine share: where they are, and when it is used again."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from galley.service.shared_tensors import (
    LEAST_BYTES,
    PlacedTensors,
    SharedTensors,
    new_shared_tensors,
)
from galley.service.spawn import spawn
from galley.types import Embed, EngineRequest, Predict, Tensor

MIB = 2**20


@pytest.fixture
def file() -> int:
    made = new_shared_tensors()
    if made is None:
        pytest.skip("the system has no such memory")
    return made


@pytest.fixture
def memory(file: int) -> Iterator[SharedTensors]:
    made = SharedTensors(file)
    yield made
    made.close()


def request(name: str, *data: bytes) -> EngineRequest:
    inputs = [
        Tensor(name=f"x{number}", datatype="UINT8", shape=(len(one),), data=one)
        for number, one in enumerate(data)
    ]
    return EngineRequest(id=name, payload=Predict(inputs=tuple(inputs)))


def test_the_engine_reads_what_was_placed(memory: SharedTensors, file: int) -> None:
    engine = PlacedTensors(file)
    given = request("a", b"1" * 100_001, b"", b"3" * 5)
    sent, places = memory.place(given, 1)
    assert [size for _, size in places] == [100_001, 0, 5]
    assert all(begin % 64 == 0 for begin, _ in places)
    assert isinstance(sent.payload, Predict)
    assert not any(one.data for one in sent.payload.inputs)
    restored = engine.restore(sent, places)
    assert restored == given
    assert isinstance(restored.payload, Predict)
    data = restored.payload.inputs[0].data
    assert isinstance(data, memoryview)
    assert data.readonly


def test_small_and_other_requests_stay_in_their_frames(memory: SharedTensors) -> None:
    for given in (
        request("a", bytes(LEAST_BYTES - 1)),
        EngineRequest(id="b", payload=Embed(prompt=[1])),
    ):
        assert memory.place(given, 1) == (given, ())


def begin(memory: SharedTensors, name: str, size: int, frame: int) -> int | None:
    """Return where a request's tensor begins; None: there was no room."""
    _, places = memory.place(request(name, bytes(size)), frame)
    return places[0][0] if places else None


def test_room_is_used_again_once_the_engine_has_answered(memory: SharedTensors) -> None:
    assert begin(memory, "a", MIB, 1) == 0
    assert begin(memory, "b", MIB, 2) == MIB
    assert begin(memory, "c", MIB, 3) == 2 * MIB
    memory.seen(3, ["b"])
    assert begin(memory, "d", 2 * MIB, 4) == 3 * MIB
    assert begin(memory, "e", MIB, 5) == MIB
    memory.seen(5, ["a", "c", "d", "e"])
    assert begin(memory, "f", MIB, 6) == 0


def test_an_aborted_request_keeps_its_place_until_the_engine_knows(memory: SharedTensors) -> None:
    assert begin(memory, "a", MIB, 1) == 0
    memory.aborted(["a"], 2)
    memory.seen(1, [])
    assert begin(memory, "b", MIB, 3) == MIB
    memory.seen(2, [])
    assert begin(memory, "c", MIB, 4) == 0


def test_a_late_answer_frees_no_later_request_with_its_id(memory: SharedTensors) -> None:
    assert begin(memory, "a", MIB, 1) == 0
    memory.aborted(["a"], 2)
    assert begin(memory, "a", MIB, 3) == MIB
    memory.seen(1, ["a"])  # the engine had answered before it read the second frame
    assert begin(memory, "b", MIB, 4) == 2 * MIB
    memory.seen(4, ["a"])
    assert begin(memory, "c", 2 * MIB, 5) == 0


def test_what_does_not_fit_is_sent_in_a_frame(memory: SharedTensors, file: int) -> None:
    assert begin(memory, "a", 200 * MIB, 1) == 0
    assert begin(memory, "b", 60 * MIB, 2) is None
    memory.seen(2, ["a", "b"])
    assert os.fstat(file).st_blocks * 512 <= 64 * MIB  # the rest is given back
    assert begin(memory, "c", 60 * MIB, 3) == 0


@contextmanager
def few_addresses() -> Iterator[None]:
    """Leave this process 64 MiB of addresses."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    left = pages * os.sysconf("SC_PAGE_SIZE") + 64 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (left, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_without_addresses_the_server_sends_frames_and_the_engine_says_so(file: int) -> None:
    given = request("a", bytes(MIB))
    memory = SharedTensors(file)
    with few_addresses():
        assert memory.place(given, 1) == (given, ())
    sent, places = memory.place(given, 2)
    with few_addresses(), pytest.raises(MemoryError, match="ulimit -v"):
        PlacedTensors(file).restore(sent, places)
    memory.close()


FULL = """
import os, sys
from galley.service.shared_tensors import SharedTensors
from galley.types import EngineRequest, Predict, Tensor

file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 256 << 20)
memory = SharedTensors(file)

def placed(name, size, frame):
    tensor = Tensor(name="x", datatype="UINT8", shape=(size,), data=bytes(size))
    return memory.place(EngineRequest(id=name, payload=Predict(inputs=(tensor,))), frame)[1]

print(placed("a", 700_000, 1), placed("b", 700_000, 2), placed("c", 200_000, 3))
memory.seen(3, ["a", "b", "c"])
print(placed("d", 900_000, 4))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_without_memory_a_request_is_sent_in_a_frame(tmp_path: Path) -> None:
    """Writing to a page that the system cannot provide would end the server with SIGBUS."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        command = [sys.executable, "-c", FULL, str(tmp_path / "memory")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    first, second = done.stdout.splitlines()
    assert first == "((0, 700000),) () ((700032, 200000),)"
    assert second == "((0, 900000),)"


def test_a_process_that_cannot_start_leaves_no_memory_open(file: int) -> None:
    def open_memory() -> int:
        found = 0
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found += "galley-tensors" in os.readlink(entry)
        return found

    before = open_memory()
    with pytest.raises(ValueError, match="null byte"):
        spawn(environ={"NAME": "\0"})
    assert open_memory() == before
    os.close(file)
