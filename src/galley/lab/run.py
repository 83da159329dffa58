"""Runs experiments, each in a process of its own, and keeps what they found for the next run."""

import dataclasses
import importlib.util
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final

import msgspec

from galley import __version__
from galley.bench.kept import keep, read_kept
from galley.bench.report import Machine as Peaks
from galley.errors import GalleyError
from galley.lab.bench import Lab
from galley.lab.experiment import Experiment, Finding
from galley.lab.registry import experiment_of
from galley.machine import give_memory_back

VERSION: Final = 1

BUNDLED_CALL: Final = "a bundled call"
"""The condition "recordings" if none are given."""

_MODULES_OF: Final = {
    "speech": ("av", "jiwer", "onnxruntime", "soxr"),
    "torch": ("torch",),
}
"""Extra -> modules that it installs."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an experiment.

    Attributes:
        finding: what it found; None: it could not be run.
        problem: why not.
        seconds: that it took.
    """

    finding: Finding | None = None
    problem: str = ""
    seconds: float = 0.0


class Results(msgspec.Struct, kw_only=True):
    """The outcomes so far, and what they hold for.

    Attributes:
        conditions: whatever changes figures: model, settings, machine, size of the run.
        peaks: measured rates of the machine.
        outcomes: experiment -> outcome.
    """

    version: int = VERSION
    galley: str = __version__
    conditions: dict[str, str]
    peaks: Peaks
    outcomes: dict[str, Outcome] = {}


def read_results(file: Path, conditions: Mapping[str, str]) -> Results | None:
    """Return the results in a file; None if there is no file. See :func:`read_kept`."""
    return read_kept(file, Results, VERSION, conditions, "galley lab")


def run_experiments(
    names: Sequence[str],
    lab: Lab,
    results: Results,
    *,
    file: Path | None = None,
    on_begin: Callable[[str], None] = lambda name: None,
    on_end: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the experiments that have no finding yet, and add their outcomes to ``results``.

    Args:
        names: of experiments.
        lab: the models and the machine.
        results: also written to the file after each experiment.
        file: keeps the results.
        on_begin, on_end: called with the name of each experiment, those with a finding included.
    """
    for name in names:
        on_begin(name)
        known = results.outcomes.get(name)
        if known is None or known.finding is None:
            results.outcomes[name] = _outcome(name, lab)
            if file is not None:
                keep(file, results)
        on_end(name)


def _outcome(name: str, lab: Lab) -> Outcome:
    began = time.monotonic()
    missing = _missing(experiment_of(name))
    if missing:
        return Outcome(problem=f"needs {missing}")
    # A process of its own: memory is measured from a clean state, and a crash ends one experiment alone.
    context = multiprocessing.get_context("spawn")
    try:
        # As in a server's engine process, the process grows by what is held and not by what was freed.
        with ProcessPoolExecutor(1, mp_context=context, initializer=give_memory_back) as pool:
            outcome = pool.submit(find, name, lab).result()
    except BrokenProcessPool:
        problem = "its process ended, perhaps for lack of memory"
        return Outcome(problem=problem, seconds=time.monotonic() - began)
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


def find(name: str, lab: Lab) -> Outcome:
    """Run an experiment. An exception ends only this one: the others may still take minutes."""
    try:
        finding = experiment_of(name).run(lab)
    except GalleyError as error:
        return Outcome(problem=str(error))
    except Exception as error:
        return Outcome(problem=f"{type(error).__name__}: {error}")
    unknown = [
        claim.figure
        for claim, figure in zip(experiment_of(name).claims, finding.figures, strict=True)
        if not all(map(math.isfinite, dataclasses.astuple(figure.measured)))
    ]
    if unknown:
        return Outcome(problem=f"nothing could be measured of: {', '.join(unknown)}")
    return Outcome(finding=finding)


def _missing(experiment: Experiment) -> str:
    """Return what has to be installed for an experiment; empty if nothing has."""
    for extra in experiment.needs:
        if any(importlib.util.find_spec(module) is None for module in _MODULES_OF[extra]):
            return f"the extra {extra!r}: pip install 'galley-inference[{extra}]'"
    return ""
