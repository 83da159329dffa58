"""Graph passes, one by one, and op by op execution."""

import statistics
from typing import Final

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.engine.stages import measure_eager, measure_stages
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding

_ROUNDS: Final = 3


def _run(lab: Lab) -> Finding:
    repeats = 10 if lab.quick else 70
    rounds = [_round(lab, repeats) for _ in range(_ROUNDS)]
    stages = list(measure_stages(lab.model, repeats=1))
    names = ["op by op (torch)", *(stage.name or "as traced" for stage in stages)]
    eager, *times = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Finding(
        figures=[
            Figure(measured=Spread.of([one[0] / one[-1] for one in rounds])),
            Figure(
                measured=Spread.of([one[1] / one[-1] for one in rounds]),
                predicted=stages[0].cost.steps / stages[-1].cost.steps,
            ),
        ],
        header=["after pass", "ops", "buffers, kB a token", "ms a step", "times the first"],
        rows=[
            [names[0], str(len(lab.model.program.ops)), "", f"{1e3 * eager:.3f}", "1.00"],
            *(
                [
                    name,
                    str(stage.cost.steps),
                    f"{stage.cost.activation_bytes / 1e3:.1f}",
                    f"{1e3 * seconds:.3f}",
                    f"{eager / seconds:.2f}",
                ]
                for name, stage, seconds in zip(names[1:], stages, times, strict=True)
            ),
        ],
        pictures=[
            Bars(
                title="A decode step of one sequence",
                unit="ms",
                names=names,
                series=[Series("measured", [1e3 * seconds for seconds in (eager, *times)])],
            )
        ],
        notes=["A pass that changes nothing in this model has the figures of the one before it."],
    )


def _round(lab: Lab, repeats: int) -> list[float]:
    """Return the seconds of a step op by op, and after each pass."""
    eager = measure_eager(lab.model, repeats=repeats)
    assert eager is not None  # the experiment needs torch
    return [eager, *(stage.seconds for stage in measure_stages(lab.model, repeats=repeats))]


EXPERIMENT: Final = Experiment(
    name="passes",
    title="Graph passes and op by op execution",
    statement="A compiled graph runs 2 to 5 times as fast as the same ops one by one.",
    source="PyTorch 2, ASPLOS 2024 (2.27 times for inference on an A100)",
    prediction="Of the passes: the number of ops, as if each took as long.",
    claims=(
        Claim(figure="time op by op to that of the compiled program", unit="times", low=2, high=5),
        Claim(figure="time without passes to that with them", unit="times", low=1.05),
    ),
    run=_run,
    needs=("torch",),
)
