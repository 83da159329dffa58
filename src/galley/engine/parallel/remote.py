"""The ranks on other machines, as rank 0 reaches them: ``galley rank`` at the other end."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from galley.engine.parallel.contents import Contents
from galley.engine.parallel.frames import Begin, Loaded
from galley.engine.parallel.mesh import START_SECONDS, Join, Mesh, connect_mesh, join, new_session
from galley.errors import ModelError, SettingsError
from galley.formats.model_files import samples_digest
from galley.links.access import read_access
from galley.links.duplex import SealedStream
from galley.links.owner import own_owner
from galley.ops.communicator import Communicator
from galley.settings.engine import EngineSettings
from galley.settings.values import address_text, parsed_address

_LEADER: Final = 0


class RemoteRanks:
    """The last ranks of a model, which are on other machines.

    Args:
        settings: those of the engine, which name at least one.
        folder: the checkpoint.

    Raises:
        SettingsError: the token or a certificate cannot be read, or an address has another form.
    """

    def __init__(self, settings: EngineSettings, folder: Path) -> None:
        first = settings.ranks_here
        self.addresses = {
            first + i: parsed_address(address, "tensor_parallel_rank")
            for i, address in enumerate(settings.tensor_parallel_rank)
        }
        self._access = read_access(settings)
        self._session = new_session()
        self._samples = samples_digest(folder)
        self._contents = Contents(folder)
        self._deadline = time.monotonic() + START_SECONDS

    def named(self, begin: Begin) -> Begin:
        """Return the first frame of a rank with the addresses of these."""
        return msgspec.structs.replace(
            begin, session=self._session, elsewhere=self.addresses, samples=self._samples
        )

    def address_of(self, rank: int) -> str:
        """Return HOST:PORT of a rank, for messages."""
        return address_text(*self.addresses[rank])

    def connect(self, rank: int) -> SealedStream:
        """Connect to a rank, for frames.

        Raises:
            SettingsError: it refuses, or does not have the token.
            EngineFailed: it cannot be reached.
        """
        what = Join(self._session, _LEADER, rows=False, owner=own_owner())
        return SealedStream(join(self.addresses[rank], self._access, what, self._deadline))

    def mesh(self, memory: npt.NDArray[np.uint8], shared: Communicator, slot_bytes: int) -> Mesh:
        """Connect to all of them, for rows; see :meth:`connect` for errors."""
        links = connect_mesh(self._session, _LEADER, self.addresses, self._access, self._deadline)
        return Mesh(memory, shared, slot_bytes, links)

    def check_contents(self, loaded: Mapping[int, Loaded]) -> None:
        """Wait until all files are read here, and compare them with those that ranks have loaded.

        Raises:
            ModelError: they differ, or a file cannot be read.
        """
        own = self._contents.digest()
        for rank in self.addresses:
            if loaded[rank].contents != own:
                raise ModelError(
                    f"the checkpoint of rank {rank} at {self.address_of(rank)} has files of the same "
                    "sizes as the engine's, but with other contents; all ranks need the same files"
                )

    def check_isa(self, each: Sequence[str]) -> None:
        """Raise SettingsError if the kernels of a rank may round differently from rank 0's."""
        for rank in self.addresses:
            if each[rank] != each[_LEADER]:
                raise SettingsError(
                    f"rank {rank} at {self.address_of(rank)} computes with {each[rank]}, this machine "
                    f"with {each[_LEADER]}, which may round differently; set GALLEY_CPU_ISA to the same on "
                    "all machines"
                )
