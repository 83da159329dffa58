"""Warm-ups of a model before it is ready, so that its first request is as fast as later ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from galley.errors import CheckpointError
from galley.runtimes.arrays import DTYPES
from galley.runtimes.tensor_model import TensorModel, Warmup, WarmupInput
from galley.runtimes.trial import random_values
from galley.types import TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array


def warm_up(model: TensorModel, warmups: Sequence[Warmup], file: Path) -> None:
    """Compute the warm-ups of a model.

    Raises:
        CheckpointError: the model cannot compute one of them.
    """
    rng = np.random.default_rng(0)
    names = [spec.name for spec in model.outputs]
    for warmup in warmups:
        try:
            inputs = {one.name: _values(one, rng) for one in warmup.inputs}
            for _ in range(warmup.count):
                model.run(inputs, names)
        except Exception as error:  # whatever a library raises
            raise CheckpointError(
                f"cannot be computed: {error}", file=str(file), field="warmup"
            ) from error


def _values(one: WarmupInput, rng: np.random.Generator) -> "Array":
    if one.random:
        spec = TensorSpec(name=one.name, datatype=one.datatype, shape=one.shape)
        return random_values(spec, one.shape, rng)
    if one.datatype == "BYTES":
        return np.full(one.shape, "", object)
    return np.zeros(one.shape, DTYPES[one.datatype])
