"""A tuning as one self-contained HTML file: no scripts, no network."""

import math
from collections.abc import Sequence
from html import escape

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.html import document, facts, table
from galley.tune.advice import Prices, candidate_header, candidate_row
from galley.tune.goal import Limit
from galley.tune.search import Tuning, pareto
from galley.tune.trials import Trial


def page(
    tuning: Tuning,
    best: Trial,
    goal: Sequence[Limit],
    prices: Prices,
    file: str,
    takes: Sequence[str],
) -> str:
    """Render the chosen settings, the Pareto front, and every trial with its prediction."""
    known = {**tuning.conditions, "galley": tuning.galley}
    forecasts = {one.candidate: one.forecast for one in tuning.considered}
    trials = table(
        candidate_header(goal),
        [
            candidate_row(trial, forecasts.get(trial.candidate), goal, prices)
            for trial in tuning.trials
        ],
    )
    losses = table(
        ["weights, keys and values", "mean KL, nats", "99 % KL", "same likeliest token"],
        [
            [name, f"{loss['kl']:.2g}", f"{loss['kl99']:.2g}", f"{loss['top1']:.2%}"]
            for name, loss in tuning.losses.items()
        ],
    )
    met = best.factor(goal) <= 1
    said = "The goal is met." if met else "The goal is not met by any measured candidate."
    parts = [
        facts(known),
        f'<p class="{"good" if met else "bad"}">{escape(said)}</p>',
        *(f"<p>{escape(sentence)}</p>" for sentence in takes),
        f'<h2>Settings</h2><pre class="scroll" tabindex="0">{escape(file)}</pre>',
        f'<h2>Cost and latency</h2><div class="charts">{_front(tuning, best, goal)}</div>',
        f"<h2>Trials</h2>{trials}",
        f"<h2>Loss of quality</h2>{losses}" if tuning.losses else "",
    ]
    return document("galley tune", "".join(parts))


def _front(tuning: Tuning, best: Trial, goal: Sequence[Limit]) -> str:
    whole = [trial for trial in tuning.trials if _drawn(trial, goal)]
    front = pareto([trial for trial in whole if trial.turns == best.turns], goal)
    lines = [
        _line("a part of the trace", [t for t in whole if t.turns != best.turns], goal, 7),
        _line("the whole trace", [t for t in whole if t.turns == best.turns], goal, 0),
    ]
    drawn = [
        # Each candidate is a point of its own; only the front is a line.
        Line(line.name, [x], [y], line.color, dots=True, labels=[label])
        for line in lines
        for x, y, label in zip(line.xs, line.ys, line.labels, strict=True)
    ]
    drawn.append(_line("Pareto front", front, goal, 1))
    if _drawn(best, goal):
        drawn.append(_line("chosen", [best], goal, 2))
    top = max([trial.cost for trial in whole], default=1.0)
    drawn.append(Line("limit of the goal", [1.0, 1.0], [0.0, top], 4, dashed=True))
    return chart(
        "Cost by latency",
        "largest latency, as a share of its limit",
        "CPU s per 1,000 output tokens",
        drawn,
    )


def _drawn(trial: Trial, goal: Sequence[Limit]) -> bool:
    return math.isfinite(trial.cost) and math.isfinite(trial.factor(goal))


def _line(name: str, trials: Sequence[Trial], goal: Sequence[Limit], color: int) -> Line:
    return Line(
        name,
        [trial.factor(goal) for trial in trials],
        [trial.cost for trial in trials],
        color,
        dots=True,
        labels=[str(trial.candidate) for trial in trials],
    )
