"""What int8 inputs of linear layers cost a model: with scales for each token, or one that was observed.

Kernels scale groups of each token's (dynamic). Static scales are computed here alone, to be compared with
that.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from galley.calibration.layerwise import Layerwise
from galley.calibration.measures import Divergence, Loss, following
from galley.engine.read_model import Model
from galley.formats.weights import Floats, WeightKind
from galley.ops.executor import ExecutorFactory
from galley.quant.int8_inputs import dynamic_int8, input_group
from galley.quant.observers import Observer, static_int8


def observed(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    observers: Mapping[str, Observer],
) -> dict[str, dict[int, float]]:
    """Observer -> buffer that linear layers read -> the largest magnitude that its range covers.

    Args:
        model: as it is.
        factory: of the executor that runs it.
        windows: texts to calibrate with.
        observers: by name.
    """
    run = Layerwise(model.program, model.weights, windows, factory, model.options)
    found: dict[str, dict[int, float]] = {name: {} for name in observers}
    for buffer in run.kept:
        rows = run.advance(buffer)
        if run.linears(buffer):
            for name, observer in observers.items():
                found[name][buffer] = observer(rows)
    return found


def loss_of_inputs(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    ranges: Mapping[int, float] | None,
) -> Loss:
    """Of the model beside itself, when the inputs of its linear layers alone are rounded to int8.

    Args:
        model: as it is.
        factory: of the executor that runs it.
        windows: texts to measure on.
        ranges: buffer -> the largest magnitude that int8 covers; None: as kernels round beside int8
            weights.
    """

    def rounded(buffer: int, rows: Floats) -> Floats:
        if ranges is not None:
            return static_int8(rows, ranges[buffer])
        depth = rows.shape[1]
        return dynamic_int8(rows, input_group(WeightKind("int8"), depth))

    base, changed = (_run(model, factory, windows, change) for change in (None, rounded))
    after = following(windows)
    divergence = Divergence()
    for (first, p), (_, q) in zip(base.logits(), changed.logits(), strict=True):
        divergence.add(p, q, after[first : first + len(p)])
    return divergence.loss()


def _run(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    change: Callable[[int, Floats], Floats] | None,
) -> Layerwise:
    run = Layerwise(model.program, model.weights, windows, factory, model.options)
    readers = model.program.readers()
    for buffer in run.kept:
        rows = run.advance(buffer)
        linear = {model.program.ops[i].name for i in readers[buffer]} == {"linear"}
        if change is not None and linear:
            np.copyto(rows, change(buffer, rows))
    return run
