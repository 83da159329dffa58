"""The ops of one of several ranks in torch: rows are exchanged in host memory, as float32."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import embedding

from galley.graph.program import Op
from galley.ops.batch import Batch
from galley.ops.reference_attention import AttentionOps
from galley.ops.reference_step import Step
from galley.ops.tiles import TILE, Tiles

Rows = npt.NDArray[np.float32]


class Communicator(Protocol):
    """Exchanges rows with the other ranks."""

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    def gather(self, x: Rows, ranks: Sequence[int], y: Rows) -> None:
        """Write the columns of all ranks to y [rows, columns]; ``ranks`` has the columns of each."""
        ...


class RankOps(AttentionOps):
    """The implementations of the ops of programs that are divided among ranks."""

    _communicator: Communicator | None = None

    def gathered(self, x: torch.Tensor, ranks: Sequence[int]) -> torch.Tensor:
        """Return x [rows, columns of this rank] with the columns of all ranks."""
        assert self._communicator is not None, "the program of one of several ranks"
        given = x.float().cpu().contiguous().numpy()
        found = np.empty((len(given), sum(ranks)), np.float32)
        self._communicator.gather(given, ranks, found)
        return torch.from_numpy(found).to(self._device, self._dtype)

    def _all_gather(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        rows = self.gathered(torch.cat(inputs[0]), op.attrs["ranks"])
        return [tile.clone() for tile in torch.split(rows, TILE)]

    def _embed_part(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        """Look up the tokens of this rank, and take each row from the rank that has its token."""
        assert isinstance(step.source, Batch)
        assert self._communicator is not None
        ranks, rank = op.attrs["ranks"], self._communicator.rank
        tokens = torch.from_numpy(np.array(step.source.tokens))
        owners = torch.searchsorted(torch.tensor(ranks).cumsum(0), tokens, right=True)
        places = (tokens - sum(ranks[:rank])).clamp(0, ranks[rank] - 1)
        rows = embedding(places.to(self._device), self._weights[op.tensor("weight")])
        all_rows = self.gathered(rows, (op.width,) * len(ranks))
        each = all_rows.view(len(tokens), len(ranks), op.width)
        return step.layout.scatter(each[torch.arange(len(tokens)), owners])

    def joined(self, op: Op, role: str) -> torch.Tensor:
        """Return the tensors of a role, one after another: a rank may have several parts of one."""
        parts = [self._weights[name] for name in op.weights[role]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
