"""Which CPUs each rank runs on."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from galley.errors import SettingsError
from galley.machine import usable_cpus

NODES: Final = Path("/sys/devices/system/node")


def parse_cpus(text: str, separator: str = "+") -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-7+16``.

    Settings separate lists by commas, so a list has plus signs; the kernel's lists have commas.

    Raises:
        SettingsError: the text is not such a list.
    """
    found: set[int] = set()
    for part in text.split(separator):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SettingsError(
                f"tensor_parallel_cpus: {text!r} is not a list of CPUs such as 0-7+16"
            )
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def cpus_of_ranks(wanted: Sequence[str], ranks: int, nodes: Path = NODES) -> list[tuple[int, ...]]:
    """Return the CPUs of each rank; none means that the system chooses.

    They are those of the setting, or else a share of the machine's NUMA nodes, if it has as many as ranks
    or a multiple.

    Raises:
        SettingsError: the setting names other than one list for each rank, or CPUs that this process may
            not use.
    """
    usable = usable_cpus()
    if wanted:
        lists = [parse_cpus(text) for text in wanted]
        if len(lists) != ranks:
            raise SettingsError(
                f"tensor_parallel_cpus has {len(lists)} lists of CPUs, but there are {ranks} ranks on this "
                "machine; give one list for each"
            )
        for text, cpus in zip(wanted, lists, strict=True):
            if not usable.issuperset(cpus):
                raise SettingsError(
                    f"tensor_parallel_cpus: {text!r} has CPUs that this process may not use; usable: "
                    f"{', '.join(map(str, sorted(usable)))}"
                )
        return lists
    found = _nodes(nodes, usable)
    if len(found) < 2 or len(found) % ranks:
        return [()] * ranks
    each = len(found) // ranks
    return [
        tuple(sorted(cpu for node in found[r * each : (r + 1) * each] for cpu in node))
        for r in range(ranks)
    ]


def run_on(cpus: Sequence[int]) -> Callable[[], None]:
    """Let the calling thread, and those that it starts, run on these CPUs only; none: change nothing.

    Returns:
        A function that lets this thread run where it could before; any thread may call it.
    """
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return _nothing
    before, thread = os.sched_getaffinity(0), threading.get_native_id()
    os.sched_setaffinity(0, cpus)

    def undo() -> None:
        if Path(f"/proc/self/task/{thread}").exists():
            with suppress(OSError):  # the thread has just ended, or may no longer use these CPUs
                os.sched_setaffinity(thread, before)

    return undo


def _nothing() -> None:
    """Undo nothing."""


def _nodes(folder: Path, usable: set[int]) -> list[set[int]]:
    """Return the usable CPUs of each NUMA node that has any."""
    lists = sorted(folder.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    texts = (path.read_text().strip() for path in lists)
    nodes = (usable.intersection(parse_cpus(text, ",")) for text in texts if text)
    return [node for node in nodes if node]
