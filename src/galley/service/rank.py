"""The process of a rank of a model: ``python -m galley.service.rank SOCKET MEMORY MEETING [bound]``.

SOCKET and MEMORY are the descriptors of the connection to rank 0, in an engine's process, and of the memory
that all ranks share; MEETING is that of the file through which ranks on devices find each other, or -1. The
process ends with the connection, so it cannot outlive the engine; where it is ``bound``, not even if it is
stopped. Signals of terminals and service managers are for the server.
"""

import importlib
import os
import signal
import socket
import sys
from typing import Final

from galley.observe import logs
from galley.service.process_limits import end_with_parent

BOUND: Final = "bound"


def main() -> None:
    """Serve one connection until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BOUND in sys.argv[4:]:
        end_with_parent()
    logs.start(os.environ.get(logs.FORMAT_VARIABLE, "text"))
    descriptor, memory, meeting = map(int, sys.argv[1:4])
    connection = socket.socket(fileno=descriptor)
    # The service knows engines by name only.
    importlib.import_module("galley.engine.parallel.rank").serve_rank(connection, memory, meeting)
    sys.stderr.flush()
    os._exit(0)  # threads must not keep the process alive


if __name__ == "__main__":
    main()
