"""Short background work while the engine serves, such as writing files for the next start."""

import threading
from collections.abc import Callable
from typing import Final

_NAME: Final = "galley-background"


def start(work: Callable[[], None]) -> None:
    """Run ``work`` on a new thread; the interpreter does not exit before it is done."""
    threading.Thread(target=work, name=_NAME).start()


def finish() -> None:
    """Wait for all background work that was started in this process."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()
