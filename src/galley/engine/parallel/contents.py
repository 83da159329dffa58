"""Whether the machines of a model's ranks have the same checkpoint.

Samples of the files are compared before anything is loaded, so that another model is refused at once. All
their bytes are compared before the first step: they are read while the weights are loaded, and once for
each version of the files, since their digests are remembered.
"""

import threading
from concurrent.futures import Future
from pathlib import Path

from galley.errors import ModelError
from galley.formats.model_files import files_digest


class Contents:
    """The digest of a checkpoint's files, which a thread computes from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: Future[bytes] = Future()
        threading.Thread(target=self._read, daemon=True, name="galley-rank-digest").start()

    def digest(self) -> bytes:
        """Wait for the digest.

        Raises:
            ModelError: a file cannot be read.
        """
        return self._found.result()

    def _read(self) -> None:
        try:
            self._found.set_result(files_digest(self._folder))
        except OSError as error:
            self._found.set_exception(
                ModelError(f"{self._folder} cannot be read: {error.strerror or error}")
            )
        except BaseException as error:
            self._found.set_exception(error)
