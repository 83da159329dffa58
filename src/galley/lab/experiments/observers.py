"""Methods of calibration: one scale for all inputs of a layer, by observer."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from galley.calibration.layerwise import Layerwise
from galley.calibration.static_inputs import loss_of_inputs, observed
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Experiment, Figure, Finding, loss_bars
from galley.lab.roundings import LOSS_COLUMNS, loss_cells, material
from galley.quant.observers import OBSERVERS, static_int8

_WHOLE: Final = "min-max"
_EACH: Final = "a scale for each token"


def _run(lab: Lab) -> Finding:
    model, factory, texts = material(lab)
    ranges = observed(model, factory, texts.calibration, OBSERVERS)
    found = {
        observer: loss_of_inputs(model, factory, texts.measured, ranges[observer])
        for observer in OBSERVERS
    }
    found[_EACH] = loss_of_inputs(model, factory, texts.measured, None)
    run = Layerwise(model.program, model.weights, texts.measured, factory, model.options)
    errors = _input_errors(run, ranges)
    best = min((one for one in OBSERVERS if one != _WHOLE), key=lambda one: found[one].kl)
    return Finding(
        figures=[
            Figure.exact(found[_WHOLE].kl / found[best].kl, errors[_WHOLE] / errors[best]),
            Figure.exact(found[_WHOLE].kl / found[_EACH].kl),
        ],
        header=["scale", "error of the inputs", *LOSS_COLUMNS],
        rows=[
            [
                observer,
                f"{errors[observer]:.3%}" if observer in errors else "",
                *loss_cells(loss),
            ]
            for observer, loss in found.items()
        ],
        pictures=[loss_bars(found, "Loss of int8 inputs by observer")],
        notes=[
            "Inputs of all linear layers are rounded to int8; weights are not. Measured on "
            f"{found[_WHOLE].tokens} tokens that the model generated, held out of calibration. "
            f"The best of the others here: {best}. Galley's kernels scale each token's inputs, in groups, "
            "and need no calibration.",
        ],
    )


def _input_errors(run: Layerwise, ranges: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return observer -> squared error of rounded inputs as a share of their square, in the mean."""
    shares: dict[str, list[float]] = {observer: [] for observer in ranges}
    for buffer in run.kept:
        rows = run.advance(buffer)
        if not run.linears(buffer):
            continue
        size = float(np.square(rows, dtype=np.float64).sum()) or 1.0
        for observer, largest in ranges.items():
            missed = static_int8(rows, largest[buffer]) - rows
            shares[observer].append(float(np.square(missed, dtype=np.float64).sum()) / size)
    return {observer: float(np.mean(found)) for observer, found in shares.items()}


EXPERIMENT: Final = Experiment(
    name="observers",
    title="Calibration methods: one scale for a layer's inputs",
    statement="Where one scale covers all inputs of a layer, clipping the rarest ones (percentile, "
    "entropy, squared error) loses less than covering the largest; a scale for each token loses least.",
    source="Integer Quantization for Deep Learning Inference, arXiv:2004.09602; LLM.int8(), "
    "arXiv:2208.07339",
    prediction="A small divergence is proportional to the squared error of the rounded inputs.",
    claims=(
        Claim(figure="loss of min-max to that of the best other", unit="times", low=1.05),
        Claim(figure="loss of min-max to a scale for each token", unit="times", low=1.05),
    ),
    run=_run,
)
