"""Work that ends by itself while the engine serves: what is kept for the next start."""

import threading
from collections.abc import Callable
from typing import Final

_NAME: Final = "galley-background"


def start(work: Callable[[], None]) -> None:
    """Do it on a thread of its own; the interpreter does not end before it is done."""
    threading.Thread(target=work, name=_NAME).start()


def finish() -> None:
    """Wait for all that was started in this process."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()
