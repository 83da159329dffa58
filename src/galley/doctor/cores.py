"""Checks of cores against quota and threads, their siblings, NUMA nodes, and other load on them."""

from typing import Final

from galley.doctor.findings import Asked, Finding
from galley.machine import available_cores, usable_cpus

_BUSY: Final = 0.25
"""Share of the cores used by others from which a finding is reported."""


def check(asked: Asked) -> list[Finding]:
    """Check threads against cores, hyperthreads, NUMA and load."""
    return [_threads(asked), *_siblings(asked), _numa(asked), *_load(asked)]


def _threads(asked: Asked) -> Finding:
    host, settings = asked.host, asked.settings
    affinity = len(usable_cpus())
    cores = available_cores(host.cgroup, host.membership)
    threads = settings.threads or cores
    models = max(1, len(settings.models))
    figures: dict[str, float | str] = {"cores": affinity, "usable": cores, "threads": threads}
    found = f"{threads} threads on {cores} usable cores"
    if cores < affinity:
        found += f" ({affinity} by affinity, the container's quota allows {cores})"
    if threads > cores:
        return Finding(
            check="threads",
            level="problem" if cores < affinity else "warning",
            found=found,
            cost="threads wait for each other at every layer"
            + (
                ", and the kernel stops all of them when the quota is used up"
                if cores < affinity
                else ""
            ),
            remedy=f"--threads {cores}, or leave the setting out",
            figures=figures,
        )
    if threads < cores:
        return Finding(
            check="threads",
            level="note",
            found=found,
            cost="cores that do not compute",
            remedy="leave --threads out, unless the others are for somebody else",
            figures=figures,
        )
    if cores == 1:
        return Finding(
            check="threads",
            level="warning",
            found=found,
            cost="the server, its text workers and the engine share one core: streams stutter under load",
            remedy="two cores or more",
            figures=figures,
        )
    if models > 1 and not settings.take_turns:
        return Finding(
            check="threads",
            level="warning",
            found=f"{models} models with {threads} threads each on {cores} cores, not taking turns",
            cost="engines that step at the same time hold each other up",
            remedy="--take-turns, or --threads for each model",
            figures=figures,
        )
    return Finding(check="threads", level="ok", found=found, figures=figures)


def _siblings(asked: Asked) -> list[Finding]:
    mine = usable_cpus()
    lists = {
        int(path.parent.parent.name.removeprefix("cpu")): path.read_text().strip()
        for path in asked.host.paths(
            "/sys/devices/system/cpu", "cpu[0-9]*/topology/thread_siblings_list"
        )
    }
    used = [lists[cpu] for cpu in mine if cpu in lists]
    physical = len(set(used))
    if not used or physical == len(used):
        return []
    return [
        Finding(
            check="hyperthreads",
            level="note",
            found=f"{len(used)} CPUs are {physical} cores with hyperthreads",
            cost="two threads of a core share its arithmetic: prefill is that of cores, not of CPUs",
            remedy=f"compare --threads {physical} with galley bench engine; buy by cores, not by vCPUs",
            figures={"cpus": len(used), "cores": physical},
        )
    ]


def _numa(asked: Asked) -> Finding:
    nodes = {}
    for path in asked.host.paths("/sys/devices/system/node", "node[0-9]*/cpulist"):
        nodes[path.parent.name] = cpus_in(path.read_text().strip())
    mine = usable_cpus()
    used = sorted(name for name, cpus in nodes.items() if cpus & mine)
    if len(used) < 2:
        return Finding(
            check="NUMA",
            level="ok",
            found="all cores are near the same memory",
            figures={"nodes": 1},
        )
    return Finding(
        check="NUMA",
        level="warning",
        found=f"the cores lie on {len(used)} NUMA nodes ({', '.join(used)})",
        cost="weights lie on one node: cores of others read them at a half to two thirds of its bandwidth",
        remedy="one server for each node: numactl --cpunodebind=0 --membind=0 galley serve ..., or a pod "
        "with a single-node topology policy",
        figures={"nodes": len(used)},
    )


def _load(asked: Asked) -> list[Finding]:
    """Report the present load of other processes: those that were runnable recently."""
    words = asked.host.text("/proc/loadavg").split()
    if not words:
        return []
    cores = available_cores(asked.host.cgroup, asked.host.membership)
    load = float(words[0])
    if load < _BUSY * cores:
        return [
            Finding(
                check="load",
                level="ok",
                found=f"load {load:.2f} on {cores} cores",
                figures={"load": load},
            )
        ]
    return [
        Finding(
            check="load",
            level="warning",
            found=f"load {load:.2f} on {cores} cores: others compute here",
            cost="a step waits for the slowest of its threads, and so for theirs",
            remedy="move them, or keep cores apart (taskset, cpuset) and set --threads to what is left",
            figures={"load": load},
        )
    ]


def cpus_in(text: str) -> set[int]:
    """Parse the CPUs of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
