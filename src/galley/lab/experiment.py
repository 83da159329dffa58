"""Experiments and their findings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.bench.serve.chart import Line
from galley.calibration.measures import Loss
from galley.lab.bench import Lab


class Curves(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A picture of lines."""

    title: str
    x: str
    y: str
    lines: list[Line]


class Bars(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A picture of bars, grouped by name."""

    title: str
    unit: str
    names: list[str]
    series: list[Series]


Picture: TypeAlias = Curves | Bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The range in which a claim expects one of the measured figures.

    Attributes:
        figure: name of the figure.
        unit: such as "times", or "%".
        low, high: the range; None: no bound on that side.
    """

    figure: str
    unit: str
    low: float | None = None
    high: float | None = None

    @property
    def range(self) -> str:
        """The range in words."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g} {self.unit}"
        if self.low is not None:
            return f"at least {self.low:g} {self.unit}"
        return f"at most {self.high:g} {self.unit}"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured figure that a claim is about.

    Attributes:
        measured: the median, and the range of the repeats.
        predicted: by arithmetic from what the machine was measured to do; None: nothing predicts it.
        doubt: why the figure decides nothing, whatever it is; empty: it does.
    """

    measured: Spread
    predicted: float | None = None
    doubt: str = ""

    @classmethod
    def exact(cls, measured: float, predicted: float | None = None) -> "Figure":
        """Return the figure of a count, which is the same each time."""
        return cls(measured=Spread(measured, measured, measured), predicted=predicted)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an experiment.

    Attributes:
        figures: one for each claim, in the same order.
        header, rows: the table of everything measured.
        notes: what is needed to read the figures.
    """

    figures: list[Figure]
    header: list[str]
    rows: list[list[str]]
    pictures: list[Picture]
    notes: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One claim, or a few that belong together, and the measurement that confirms or contradicts them.

    Attributes:
        name: on the command line.
        title: of its part of the page.
        statement: the claim as people read it.
        source: where it is from.
        prediction: how the predicted figures are computed.
        claims: what is compared with the figures.
        run: measures.
        needs: extras of the package without which it cannot run.
    """

    name: str
    title: str
    statement: str
    source: str
    prediction: str
    claims: tuple[Claim, ...]
    run: Callable[[Lab], Finding]
    needs: tuple[str, ...] = field(default=())


Judgment: TypeAlias = Literal["confirmed", "undecided", "contradicted"]


def loss_bars(found: Mapping[str, Loss], title: str = "Loss") -> Bars:
    """Return the picture of losses, by name."""
    return Bars(
        title=title,
        unit="mean KL, thousandths of a nat",
        names=[*found],
        series=[Series("measured", [1e3 * loss.kl for loss in found.values()])],
    )


def judge(claim: Claim, figure: Figure) -> Judgment:
    """Compare a figure with the range of its claim.

    Returns:
        "confirmed" if the median is in the range, "contradicted" if no measurement may be, and
        "undecided" if they vary too much to say, or if the figure is in doubt.
    """
    if figure.doubt:
        return "undecided"
    low = float("-inf") if claim.low is None else claim.low
    high = float("inf") if claim.high is None else claim.high
    measured = figure.measured
    if low <= measured.median <= high:
        return "confirmed"
    return "undecided" if measured.high >= low and measured.low <= high else "contradicted"


def verdict(claim: Claim, figure: Figure) -> str:
    """Say in a sentence whether the figure confirms the claim."""
    measured = figure.measured
    found = f"{claim.figure}: {measured.median:.3g} {claim.unit}"
    if measured.low != measured.high:
        found += f" ({measured.low:.3g} to {measured.high:.3g})"
    judged = judge(claim, figure)
    why = figure.doubt or "the measurements vary too much; measure on an idle machine"
    head = {
        "confirmed": "Confirmed here.",
        "undecided": f"Undecided: {why}.",
        "contradicted": "Contradicted here.",
    }[judged]
    return f"{head} {found}; confirmed by {claim.range}."
