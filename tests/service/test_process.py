"""How frames are written to an engine's process."""

import asyncio
from typing import Any

from galley.service.frames import HEADER, Abort, Submit, decode_to_engine
from galley.service.process import EngineProcess
from galley.types import EngineRequest, Predict, Tensor

LARGE = 100_000


class Writer:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))


def frames(data: bytes) -> list[Any]:
    found = []
    while data:
        (length,) = HEADER.unpack_from(data)
        found.append(decode_to_engine(data[HEADER.size : HEADER.size + length]))
        data = data[HEADER.size + length :]
    return found


def aborted(*names: str) -> list[Abort]:
    return [Abort([name]) for name in names]


def test_frames_of_one_round_are_written_together() -> None:
    tensor = Tensor(name="x", datatype="UINT8", shape=(LARGE,), data=bytes(LARGE))
    large = Submit(EngineRequest(id="d", payload=Predict(inputs=(tensor,))))

    async def written() -> list[list[Any]]:
        writer: Any = Writer()
        process = EngineProcess(Any, Any, writer)  # type: ignore[arg-type]
        send: Any = process.send
        for frame in aborted("a", "b", "c"):
            send(frame)
        assert writer.written == []
        await asyncio.sleep(0)
        for other in (*aborted("e"), large, *aborted("f", "g")):
            send(other)
        await asyncio.sleep(0)
        assert process.frames_sent == 6
        return [frames(data) for data in writer.written]

    first, second, third, fourth = asyncio.run(written())
    assert first == aborted("a", "b", "c")
    assert second == aborted("e")
    assert third == [large]
    assert fourth == aborted("f", "g")
