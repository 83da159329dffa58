"""The report of simulated replicas as one self-contained HTML file: no scripts, no network."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.html import document, facts, table
from galley.plan.cluster.compare import Answer, Query, sentences
from galley.plan.cluster.simulate import QUANTILES, Outcome


def page(answers: Sequence[Answer], query: Query, known: Mapping[str, str]) -> str:
    """Render the answers.

    Args:
        answers: of each machine and router.
        query: the goal and the counts.
        known: what was simulated, in words.
    """
    said = "".join(f"<p>{escape(line)}</p>" for line in sentences(answers, query))
    quantile = query.target.quantile
    charts = "".join(
        (
            _by_replicas("Time to first token", "s", answers, lambda o: o.ttft_s[quantile], query),
            _by_replicas(
                "Time per output token", "ms", answers, lambda o: 1e3 * o.tpot_s[quantile], query
            ),
            _by_replicas(
                "From the prefix cache", "% of prompts", answers, lambda o: 100 * o.cached_share
            ),
            _distribution(answers),
            _over_time(answers) if query.bounds is not None else "",
        )
    )
    return document(
        "galley plan cluster",
        f'{facts(known)}{said}<div class="charts">{charts}</div>{_table(answers, query)}',
    )


def _by_replicas(
    title: str,
    unit: str,
    answers: Sequence[Answer],
    value: Callable[[Outcome], float],
    query: Query | None = None,
) -> str:
    """Return a chart of what was simulated, by count; with ``query``, the quantile is in its title."""
    named = f"{title}, {query.target.quantile.upper()}" if query is not None else title
    lines = [
        Line(
            _name(one),
            [outcome.replicas for outcome in one.tried],
            [value(outcome) for outcome in one.tried],
            color=number,
            dots=True,
        )
        for number, one in enumerate(answers)
    ]
    return chart(named, "replicas", unit, lines)


def _name(one: Answer | Outcome) -> str:
    return ", ".join(filter(None, (one.machine, one.router, one.scaler)))


def _over_time(answers: Sequence[Answer]) -> str:
    """Return a chart of the replicas that serve, over the time of the traffic."""
    lines = []
    for number, one in enumerate(answers):
        if (outcome := one.chosen) is None:
            continue
        times, counts = [0.0], [outcome.timeline[0][1]]
        for when, count in outcome.timeline[1:]:
            times += [when, when]
            counts += [counts[-1], count]
        times.append(max(times[-1], outcome.seconds))
        counts.append(counts[-1])
        lines.append(Line(f"{one.machine}, {one.scaler}", times, counts, color=number))
    return chart("Replicas that serve", "s", "replicas", lines)


def _distribution(answers: Sequence[Answer]) -> str:
    """Return a chart of the quantiles of TTFT of each answer."""
    percents = [int(name[1:]) for name in QUANTILES]
    lines = [
        Line(
            f"{_name(one)}, {one.chosen.replicas} replicas",
            percents,
            [one.chosen.ttft_s[name] for name in QUANTILES],
            color=number,
            dots=True,
        )
        for number, one in enumerate(answers)
        if one.chosen is not None
    ]
    return chart("Time to first token of the answers", "% of requests", "s", lines)


def _table(answers: Sequence[Answer], query: Query) -> str:
    header = ["machine, router, autoscaler", "replicas", "mean", "lost", "moved", "refused"]
    header += [f"TTFT {name.upper()} s" for name in QUANTILES]
    header += [f"TPOT {name.upper()} ms" for name in QUANTILES]
    header += ["cached", "output tokens/s", "$/h", "goal"]
    outcomes = [
        outcome
        for one in answers
        for outcome in (one.without_loss, *one.tried)
        if outcome is not None
    ]
    return table(header, [_row(outcome, query) for outcome in outcomes])


def _row(outcome: Outcome, query: Query) -> list[str]:
    counts = (outcome.lost, outcome.moved, outcome.refused)
    price = outcome.price_per_hour
    return [
        _name(outcome),
        str(outcome.replicas),
        f"{outcome.mean_replicas:.1f}",
        *map(str, counts),
        *(f"{outcome.ttft_s[name]:.3f}" for name in QUANTILES),
        *(f"{1e3 * outcome.tpot_s[name]:.1f}" for name in QUANTILES),
        f"{outcome.cached_share:.0%}",
        f"{outcome.output_tokens_per_s:.0f}",
        "" if price is None else f"{price:.2f}",
        query.target.verdict(outcome),
    ]
