"""Generate benchmarks/RESULTS.md, and a page for each machine, from benchmarks/results/*.json.

    python scripts/benchmarks_page.py

Each results file describes one machine; its fields are those of `Machine` and `Figure` below. Machines are
ordered from newest to oldest. A test checks that the pages match this script's output.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks/results"
SUMMARY: Final = ROOT / "benchmarks/RESULTS.md"
MACHINES: Final = ROOT / "benchmarks/machines"

INTRODUCTION: Final = """# Results

Made by `python scripts/benchmarks_page.py` from [results](results). Rates are divided by those of
the fastest peer on the same machine, model and bits: above 1, Galley is faster. Each machine has
a page with all figures, the missed targets and the commands. The [notes](notes/README.md) record
what was predicted, what was measured, and what was tried without gain.
"""

METHOD: Final = """## Method

- **Compared with peers** (`python -m benchmarks.peers`, `benchmarks.moe --peers`,
  `benchmarks.embeddings --peers`, `benchmarks.speculation --peer`, `benchmarks.speech`): all
  contenders load the same checkpoint (random weights of a real model's shape), run in turns on an
  idle machine with as many threads as it has cores, greedy, without a prefix cache; medians of the
  rounds. Prefill is one prompt of 512 tokens; decode continues contexts of 64 tokens.
- **Compared with the machine** (`galley bench machine`, `galley bench engine`): the rate at which
  all cores read memory is measured next to each repeat, because on shared machines it changes from
  minute to minute.
- **Service** (`make bench`, `benchmarks.together`, `benchmarks.live`): HTTP clients against `galley
  serve`.
- **Survival** (`benchmarks.faults`, `.overload`, `.fairness`, `.recovery`): the same, while engines
  are killed and stopped, clients misbehave and requests exceed the capacity. A seed determines what
  is sent and what goes wrong when; every text is compared with the prompt's expected one.
- `python -m benchmarks...` needs `pip install --constraint constraints.txt --editable '.[dev]'`.
  Peers are the versions in `benchmarks/peers/requirements`; a figure of another version names it.
- Absolute figures move with the machine; compare within one table. A bold figure misses its target.
"""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement: `measured[i]` at `at[i]`.

    Attributes:
        what: model, weights, or part of the service.
        unit: `ratio` is Galley's rate divided by the peer's.
        target: one for each of `measured`, or one for all.
        before: figures of the same run, before a change.
        command: reproduces the figure.
        peer: the other side of a ratio, with its version.
        remark: what a reader must know to interpret it.
        note: file in benchmarks/notes.
        headline: whether it appears in the summary's table.
    """

    what: str
    unit: str
    at: tuple[str, ...]
    measured: tuple[float | None, ...]
    date: str
    command: str
    target: tuple[float, ...] = ()
    better: Literal["higher", "lower"] = "higher"
    before: tuple[float | None, ...] = ()
    peer: str = ""
    remark: str = ""
    note: str = ""
    headline: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for inconsistent figures."""
        for name in ("measured", "before"):
            values = getattr(self, name)
            if values and len(values) != len(self.at):
                raise ValueError(f"{self.what}: {len(values)} {name} at {len(self.at)} points")
        if len(self.target) not in (0, 1, len(self.at)):
            raise ValueError(f"{self.what}: {len(self.target)} targets at {len(self.at)} points")
        if (self.unit == "ratio") != bool(self.peer):
            raise ValueError(f"{self.what}: a ratio, and nothing else, names its peer")

    def target_at(self, place: int) -> float | None:
        """Return the target of `measured[place]`."""
        if not self.target:
            return None
        return self.target[place if len(self.target) > 1 else 0]

    def missed(self, place: int) -> bool:
        """Return whether `measured[place]` misses its target."""
        value, target = self.measured[place], self.target_at(place)
        if value is None or target is None:
            return False
        return value < target if self.better == "higher" else value > target


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on one machine.

    Attributes:
        name: machine name in the tables.
        description: cores, instruction sets, memory and arithmetic, as measured.
        figures: in the order of the table.
    """

    name: str
    description: str
    figures: tuple[Figure, ...]


def read_results(folder: Path = RESULTS) -> dict[str, Machine]:
    """Return every machine by the name of its file, in the order of these names.

    Raises:
        msgspec.ValidationError: a file has unknown, missing or contradictory fields.
    """
    return {
        file.stem: msgspec.json.decode(file.read_bytes(), type=Machine)
        for file in sorted(folder.glob("*.json"))
    }


def pages(machines: dict[str, Machine]) -> dict[Path, str]:
    """Return each page's path with its text."""
    made = {MACHINES / f"{stem}.md": _page(machine) for stem, machine in machines.items()}
    return {SUMMARY: _summary(machines), **made}


def _summary(machines: dict[str, Machine]) -> str:
    rows = ["| machine | what | at | times as fast | as the fastest of |", "|---|---|---|---|---|"]
    rows += [
        f"| [{machine.name}](machines/{stem}.md) | {figure.what} | {', '.join(figure.at)} | "
        f"{_values(figure, figure.measured)} | {figure.peer} |"
        for stem, machine in machines.items()
        for figure in machine.figures
        if figure.headline
    ]
    listed = "\n".join(
        f"- [{machine.name}](machines/{stem}.md): {machine.description}"
        for stem, machine in machines.items()
    )
    table = "\n".join(rows)
    return f"{INTRODUCTION}\n{table}\n\n## Machines\n\n{listed}\n\n{METHOD}"


def _page(machine: Machine) -> str:
    return (
        f"# {machine.name}\n\n{machine.description}\n\n{_table(machine)}\n## Targets missed\n\n"
        f"{_missed(machine)}\n## Commands\n\n{_commands(machine)}"
    )


def _table(machine: Machine) -> str:
    before = any(figure.before for figure in machine.figures)
    head = ["what", "unit", "at", *(["before"] if before else []), "measured", "target"]
    head += ["peer, remarks", "from"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for figure in machine.figures:
        details = "; ".join(filter(None, (figure.peer, figure.remark)))
        cells = [figure.what, figure.unit, ", ".join(figure.at)]
        cells += [_values(figure, figure.before)] if before else []
        cells += [_values(figure, figure.measured, bold=True), _target(figure), details]
        cells.append(f"[{figure.date}](../notes/{figure.note})" if figure.note else figure.date)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _values(figure: Figure, values: tuple[float | None, ...], *, bold: bool = False) -> str:
    shown = []
    for place, value in enumerate(values):
        text = "-" if value is None else f"{value:,g}"
        shown.append(f"**{text}**" if bold and figure.missed(place) else text)
    return "; ".join(shown)


def _target(figure: Figure) -> str:
    if not figure.target:
        return ""
    sign = "≥" if figure.better == "higher" else "≤"
    return f"{sign} " + "; ".join(f"{value:g}" for value in figure.target)


def _missed(machine: Machine) -> str:
    rows = [
        f"- {figure.what}{f', {label}' if label else ''}: {figure.measured[place]:g} "
        f"{figure.unit} (target {figure.target_at(place):g})"
        for figure in machine.figures
        for place, label in enumerate(figure.at)
        if figure.missed(place)
    ]
    return "\n".join(rows or ["None."]) + "\n"


def _commands(machine: Machine) -> str:
    by_command: dict[str, list[str]] = {}
    for figure in machine.figures:
        whats = by_command.setdefault(figure.command, [])
        if figure.what not in whats:
            whats.append(figure.what)
    return "".join(f"- `{command}`: {'; '.join(whats)}\n" for command, whats in by_command.items())


def main() -> None:
    """Write all pages."""
    MACHINES.mkdir(exist_ok=True)
    for path, text in pages(read_results()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
