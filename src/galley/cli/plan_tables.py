"""The tables and sentences of ``galley plan``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from galley.cli.terminal import table
from galley.machine import bytes_text, disk_read_text

if TYPE_CHECKING:
    from galley.plan.predict import Goal, Prediction
    from galley.plan.sizes import ModelSizes
    from galley.plan.steps import Load


def print_sizes(sizes: "Sequence[ModelSizes]", kv_dtype: str, load: "Load") -> None:
    """Print what the model takes in each precision."""
    first = sizes[0]
    tokens = load.prompt + load.output
    print(f"{first.parameters / 1e6:,.1f} million parameters, context {first.max_positions} tokens")
    if load.output:
        print(
            f"KV cache in {kv_dtype}: {bytes_text(first.kv_per_token)} per token, "
            f"{bytes_text(first.kv_bytes(tokens))} for a request of {tokens} tokens"
        )
    else:
        print(f"Vectors or scores of whole texts of {tokens} tokens: no KV cache, no output")
    if first.state:
        print(f"{bytes_text(first.state)} of this is the state of recurrent layers")
    header = ["weights", "held", "read a step"]
    rows = [[s.precision, bytes_text(s.weights), bytes_text(s.step_weights)] for s in sizes]
    if first.on_disk.experts:
        header += ["experts on disk", "read from disk per token, at most"]
        for row, s in zip(rows, sizes, strict=True):
            row += [_experts_text(s), disk_read_text(s.on_disk.token)]
    print(table(header, rows) + "\n")


def _experts_text(sizes: "ModelSizes") -> str:
    return f"{bytes_text(sizes.on_disk.bytes)}, {sizes.on_disk.experts:,} experts"


def print_predictions(predictions: "Sequence[Prediction]", goal: "Goal") -> None:
    """Print the figures of each machine and precision."""
    from galley.plan.predict import most_users

    header = [
        "machine",
        "weights",
        "GiB of",
        "TTFT s",
        "TPOT ms",
        "bound by",
        "tokens/s",
        "$/M",
        "most",
        "executor",
    ]
    writes = all(p.load.output for p in predictions)
    if not writes:
        header[3:5] = ["a text s"]
    on_disk = any(p.memory.experts for p in predictions)
    if on_disk:
        header.append("experts in memory")
    rows = []
    for p in predictions:
        used = f"{p.memory.total / 2**30:.1f} of {p.machine.memory:g}"
        figures = [
            f"{p.ttft:.2f}" if writes else f"{p.ttft:.4f}",
            *([f"{1e3 * p.tpot:.1f}"] if writes else []),
            p.bound,
            f"{p.tokens_per_second:.0f}",
            _cost_text(p),
        ]
        if not p.memory.fits:
            figures = ["does not fit", *[""] * (len(figures) - 1)]
        most = most_users(p.sizes, p.machine, p.load, goal)
        held = [_held_experts(p)] if on_disk else []
        runs = p.executor or "none yet"
        rows.append((p.machine.name, p.sizes.precision, used, *figures, str(most), runs, *held))
    left = (0, 1, header.index("bound by"), header.index("executor"))
    print(table(header, rows, left=left))
    print("most: concurrent requests that fit and meet the goal")
    print("executor: Galley's executor for that machine")
    if on_disk:
        print("all figures but memory are for steps that read no experts from disk")
    print()


def _cost_text(prediction: "Prediction") -> str:
    """Return the cost of a million tokens. Tokens read cost far less than those generated."""
    if prediction.cost is None:
        return ""
    return f"{prediction.cost:.{2 if prediction.load.output else 4}f}"


def _held_experts(prediction: "Prediction") -> str:
    """Return how many of the experts on disk have room in memory."""
    all_of_them = prediction.sizes.on_disk
    held = prediction.memory.experts // all_of_them.slot
    return f"{held:,} ({held / all_of_them.experts:.0%})"


def print_choice(predictions: "Sequence[Prediction]", goal: "Goal") -> None:
    """Print the cheapest machine that meets the goal, and why cheaper ones do not."""
    from galley.plan.predict import cheapest

    best = cheapest([p for p in predictions if p.is_reached], goal)
    if best is None:
        print(
            "No machine of the table with a fast executor has room for this load and meets the goal:"
        )
    else:
        print(f"The cheapest machine that meets the goal: {_priced(best)}")
    cheaper = cheapest(predictions, goal)
    if cheaper is not None and cheaper is not best:
        lacks = "no executor" if cheaper.executor is None else "only the slow reference executor"
        print(f"  {_priced(cheaper)} would meet it, but Galley has {lacks} for it yet")
    price = float("inf") if best is None else best.machine.price or 0.0
    for p in _obstacles(predictions, goal, below=price):
        if missed := goal.missed(p):
            print(f"  {p.machine.name}, {p.sizes.precision}: {missed}")


def _priced(prediction: "Prediction") -> str:
    tokens = "output tokens" if prediction.load.output else "tokens of texts"
    return (
        f"{prediction.machine.name} with {prediction.sizes.precision} weights, "
        f"${prediction.machine.price:g} per hour, ${_cost_text(prediction)} per million {tokens}"
    )


def _obstacles(
    predictions: "Sequence[Prediction]", goal: "Goal", *, below: float
) -> "list[Prediction]":
    """Return each cheaper machine's precision that comes closest, the most expensive machine first."""
    closest: dict[str, Prediction] = {}
    for p in predictions:
        if p.machine.price is None or p.machine.price >= below:
            continue
        best = closest.get(p.machine.name)
        if best is None or goal.distance(p) < goal.distance(best):
            closest[p.machine.name] = p
    return sorted(closest.values(), key=lambda p: -(p.machine.price or 0.0))
