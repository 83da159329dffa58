"""Integers that are calibrated, and integers that are rounded to nearest."""

import tempfile
from pathlib import Path
from typing import Final

from galley.calibration.matrices import linear_weights
from galley.calibration.measures import Loss
from galley.calibration.quantize import Plan, Quantizer
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Experiment, Figure, Finding, loss_bars
from galley.lab.output_errors import METHODS, output_errors
from galley.lab.roundings import LOSS_COLUMNS, loss_cells, material
from galley.quant.grid import Scheme


def _run(lab: Lab) -> Finding:
    model, factory, texts = material(lab)
    schemes = dict.fromkeys(linear_weights(model.program), Scheme(4, 128))
    found: dict[str, Loss] = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as at:
            plan = Plan(method=method, schemes=schemes)
            found[method] = Quantizer(model, factory, Path(at) / method, plan, texts).run()
    errors = output_errors(model, factory, texts, schemes)
    calibrated = min(("gptq", "awq"), key=lambda method: found[method].kl)
    return Finding(
        figures=[
            Figure.exact(
                found["rtn"].kl / found[method].kl,
                errors["rtn"] / errors[method] if errors[method] else None,
            )
            for method in ("gptq", "awq")
        ],
        header=["method", "error of a layer", "perplexity", *LOSS_COLUMNS],
        rows=[
            [
                method,
                f"{errors[method]:.2%}",
                f"{loss.perplexity:.4f}",
                *loss_cells(loss),
            ]
            for method, loss in found.items()
        ],
        pictures=[loss_bars(found, "Loss of int4 by method")],
        notes=[
            "The error of a layer is the squared error of its outputs as a share of their square, in the "
            "mean, with the layer rounded by itself.",
            f"Groups of 128, on {found['rtn'].tokens} tokens that the model generated and that were held "
            f"out of calibration. The best method here: {calibrated}.",
        ],
    )


EXPERIMENT: Final = Experiment(
    name="rounding",
    title="Calibrated integers and rounding to nearest",
    statement="GPTQ and AWQ, which round with a view to the inputs of a layer, lose less than rounding to "
    "nearest.",
    source="GPTQ, arXiv:2210.17323; AWQ, arXiv:2306.00978",
    prediction="A small divergence is proportional to the squared errors of the layers' outputs, measured "
    "with each layer rounded by itself.",
    claims=(
        Claim(figure="loss of rounding to that of GPTQ", unit="times", low=1.2),
        Claim(figure="loss of rounding to that of AWQ", unit="times", low=1.05),
    ),
    run=_run,
)
