"""The findings as one self-contained HTML file: no scripts, no network."""

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from galley.bench.serve.bars import bars
from galley.bench.serve.chart import chart
from galley.bench.serve.html import document, facts, table
from galley.lab.experiment import Bars, Experiment, Judgment, Picture, judge, verdict
from galley.lab.run import Outcome, Results

_CLASSES: Final[Mapping[Judgment, str]] = {
    "confirmed": "good",
    "undecided": "",
    "contradicted": "bad",
}


def summary(
    experiments: Sequence[Experiment], outcomes: Mapping[str, Outcome]
) -> list[tuple[str, str, str, str, str]]:
    """Return rows of experiment and figure, claim, prediction, measurement, and verdict."""
    rows = []
    for experiment in experiments:
        outcome = outcomes.get(experiment.name)
        if outcome is None or outcome.finding is None:
            problem = outcome.problem if outcome else "not run"
            rows.append((experiment.name, "", "", "", f"not measured: {problem}"))
            continue
        for claim, figure in zip(experiment.claims, outcome.finding.figures, strict=True):
            said = "" if figure.predicted is None else f"{figure.predicted:.3g} {claim.unit}"
            measured = figure.measured
            rows.append(
                (
                    f"{experiment.name}: {claim.figure}",
                    claim.range,
                    said,
                    f"{measured.median:.3g} ({measured.low:.3g} to {measured.high:.3g})"
                    if measured.low != measured.high
                    else f"{measured.median:.3g}",
                    ": ".join(filter(None, (judge(claim, figure), figure.doubt))),
                )
            )
    return rows


def page(experiments: Sequence[Experiment], results: Results) -> str:
    """Render the machine, the summary, and each experiment with its pictures."""
    peaks = results.peaks
    known = {
        **results.conditions,
        "galley": results.galley,
        "bandwidth": f"{peaks.read_huge.median / 1e9:.1f} GB/s",
        "arithmetic": ", ".join(
            f"{rate.median / 1e9:.0f} GOPS {kind}" for kind, rate in peaks.operations.items()
        ),
    }
    head = table(
        ("experiment", "confirmed by", "predicted", "measured", "verdict"),
        summary(experiments, results.outcomes),
    )
    parts = [_part(one, results.outcomes.get(one.name), results.conditions) for one in experiments]
    return document("galley lab", f"{facts(known)}<h2>Summary</h2>{head}{''.join(parts)}")


def _part(experiment: Experiment, outcome: Outcome | None, conditions: Mapping[str, str]) -> str:
    said = {
        "claim": experiment.statement,
        "source": experiment.source,
        "prediction": experiment.prediction,
        "command": _command(experiment.name, conditions),
    }
    head = f'<h2 id="{experiment.name}">{escape(experiment.title)}</h2>{facts(said)}'
    if outcome is None or outcome.finding is None:
        problem = outcome.problem if outcome else "it was not run"
        return f'{head}<p class="bad">Not measured: {escape(problem)}.</p>'
    finding = outcome.finding
    verdicts = "".join(
        f'<p class="{_CLASSES[judge(claim, figure)]}">'
        f"{escape(verdict(claim, figure) + _prediction(figure.predicted, claim.unit))}</p>"
        for claim, figure in zip(experiment.claims, finding.figures, strict=True)
    )
    pictures = "".join(map(_picture, finding.pictures))
    notes = "".join(f"<p>{escape(note)}</p>" for note in finding.notes)
    return (
        f"{head}{verdicts}{table(finding.header, finding.rows)}"
        f'<div class="charts">{pictures}</div>{notes}'
    )


def _command(name: str, conditions: Mapping[str, str]) -> str:
    """Return the command that measures an experiment again."""
    words = ["galley", "lab", name, "--again", "--model", conditions["model"]]
    return shlex.join([*words, *(["--quick"] if conditions["run"] == "quick" else [])])


def _prediction(predicted: float | None, unit: str) -> str:
    return "" if predicted is None else f" Predicted: {predicted:.3g} {unit}."


def _picture(picture: Picture) -> str:
    if isinstance(picture, Bars):
        return bars(picture.title, picture.unit, picture.names, picture.series)
    return chart(picture.title, picture.x, picture.y, picture.lines)
