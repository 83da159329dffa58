"""Short background work while the engine serves, such as writing files for the next start."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

_NAME: Final = "galley-background"


def start(work: Callable[[], None]) -> None:
    """Run ``work`` on a new thread; the interpreter does not exit before it is done."""
    threading.Thread(target=work, name=_NAME).start()


def finish(seconds: float = math.inf) -> None:
    """Wait for all background work that was started in this process, for ``seconds`` at most."""
    end = time.monotonic() + seconds
    for thread in _threads():
        thread.join(None if end == math.inf else max(0.0, end - time.monotonic()))


def is_busy() -> bool:
    """Return whether background work that was started in this process is not done."""
    return bool(_threads())


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _NAME]
