"""A process that takes turns: ``core_scheduler_player.py FILE PLACE FOLDER NAME SECONDS PIECES KIND``.

It has a simulated clock: a piece of work takes SECONDS on it, whatever the load of the machine.
"""

import os
import signal
import sys
import time
from pathlib import Path

from galley.service.core_scheduler import CoreScheduler


def main() -> None:
    """Compute pieces of work; exit with 3 if another process computes at the same time."""
    file, place, folder, name, seconds, pieces, kind = sys.argv[1:]
    spent = 0.0
    cores = CoreScheduler(int(file), int(place), clock=lambda: spent)
    log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    alone = Path(folder, "alone")
    for piece in range(int(pieces)):
        if kind == "burst":
            cores.release()
            time.sleep(0.005)
            os.write(log, f"{name}-comes 0\n".encode())
        # A step of two ops.
        if kind == "burst" or piece % 2 == 0:
            cores.acquire(live=kind in ("live", "burst"))
        else:
            cores.pause()
        os.write(log, f"{name} {seconds}\n".encode())
        if kind == "stuck":
            signal.pause()
        try:
            alone.touch(exist_ok=False)
        except FileExistsError:
            sys.exit(3)
        time.sleep(0.008)  # time for the others to arrive and wait
        alone.unlink()
        spent += float(seconds)
    cores.release()


if __name__ == "__main__":
    main()
