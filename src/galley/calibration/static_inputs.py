"""Linear layers' inputs as int8 with one observed (static) scale, and the loss of a model from that.

Kernels scale groups of each token's inputs (dynamic). Static scales are for other programs: here they are
written to checkpoints, and compared with dynamic ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from galley.calibration.compressed import input_scale, module_of, write_tensors
from galley.calibration.layerwise import Layerwise
from galley.calibration.measures import Divergence, Loss, following
from galley.calibration.quantize import write_index
from galley.engine.read_model import Model
from galley.formats.weights import Floats, WeightKind
from galley.ops.executor import ExecutorFactory
from galley.quant.int8_inputs import dynamic_int8, input_group
from galley.quant.observers import OBSERVERS, STEPS, Observer, static_int8

_FILE: Final = "inputs.safetensors"


def observed(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    observers: Mapping[str, Observer],
) -> dict[str, dict[int, float]]:
    """Observe the inputs: observer -> buffer of linear layers -> largest magnitude that its range covers.

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


def write_static_inputs(
    model: Model, factory: ExecutorFactory, windows: Sequence[Sequence[int]], observer: str
) -> None:
    """Add static scales of inputs to a checkpoint that :class:`Quantizer` has written.

    Args:
        model: as it was written.
        factory: of the executor that runs it.
        windows: texts to observe.
        observer: name, of ``OBSERVERS``.

    Raises:
        OSError: the folder cannot be written to.
    """
    ranges = observed(model, factory, windows, {observer: OBSERVERS[observer]})[observer]
    readers, raw = model.program.readers(), {}
    for buffer, largest in ranges.items():
        for op in (model.program.ops[i] for i in readers[buffer]):
            for name in op.weights.get("weight", ()):
                if op.name == "linear" and model.weights.info(name).kind.is_integer:
                    # Inputs that are always 0 can have any scale but 0.
                    raw[f"{module_of(name)}.input_scale"] = input_scale((largest or 1.0) / STEPS)
    out = model.checkpoint.folder
    shards = sorted(path.name for path in out.glob("model-*.safetensors"))
    write_tensors(out / _FILE, raw)
    write_index(out, [*shards, _FILE])


def loss_of_inputs(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    ranges: Mapping[int, float] | None,
) -> Loss:
    """Return a model's loss when the inputs of its linear layers alone are rounded to int8.

    Args:
        model: as it is.
        factory: of the executor that runs it.
        windows: texts to measure on.
        ranges: buffer -> the largest magnitude that int8 covers; None: as kernels round inputs of int8
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
