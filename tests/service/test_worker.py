"""How an engine's process waits for frames."""

import threading
from typing import Any

from galley.service import worker
from galley.service.frames import Abort

TIMES = 5_000


class Gathering:
    """An engine with work that waits for further requests, but no longer than a moment."""

    has_work = True

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def gather_seconds(self) -> float:
        """Return less time than a thread needs to run again on a busy machine."""
        return 1e-9


def test_a_wait_for_further_requests_ends_however_late_the_thread_runs() -> None:
    """``SimpleQueue.get`` of CPython 3.11 waits forever if its time is over when it looks again."""
    engine: Any = Gathering()
    inbox, connection = worker.Frames(), threading.local()
    taken: list[int | None] = []

    def take() -> None:
        for _ in range(TIMES):
            inbox.put(Abort([]))
            took = worker._take_frames(engine, inbox, connection, engine.gather_seconds)  # type: ignore[arg-type]
            taken.append(took)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(20)
    assert taken == [1] * TIMES
