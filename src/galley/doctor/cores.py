"""Checks of cores against quota and threads, their siblings, NUMA nodes, and other load on them."""

from typing import Final

from galley.doctor.findings import Context, Finding
from galley.machine import available_cores, usable_cpus

_BUSY: Final = 0.25
"""Share of the cores used by others from which a finding is reported."""


def check(context: Context) -> list[Finding]:
    """Check threads against cores, hyperthreads, NUMA and load."""
    return [_threads(context), *_siblings(context), _numa(context), *_load(context)]


def _threads(context: Context) -> Finding:
    host, settings = context.host, context.settings
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
            cost="more threads than cores: they wait for each other at every layer"
            + (
                ", and the kernel stops all of them when the quota is exhausted"
                if cores < affinity
                else ""
            ),
            remedy=f"--threads {cores}, or leave out the setting",
            figures=figures,
        )
    if threads < cores:
        return Finding(
            check="threads",
            level="note",
            found=found,
            cost="idle cores",
            remedy="leave out --threads, unless other processes need these cores",
            figures=figures,
        )
    if cores == 1:
        return Finding(
            check="threads",
            level="warning",
            found=found,
            cost="the server, its text workers and the engine share one core: streams stutter under load",
            remedy="use at least two cores",
            figures=figures,
        )
    if models > 1 and not settings.take_turns:
        return Finding(
            check="threads",
            level="warning",
            found=f"{models} models with {threads} threads each on {cores} cores, not taking turns",
            cost="engines that compute at the same time slow each other down",
            remedy="--take-turns, or --threads for each model",
            figures=figures,
        )
    return Finding(check="threads", level="ok", found=found, figures=figures)


def _siblings(context: Context) -> list[Finding]:
    mine = usable_cpus()
    lists = {
        int(path.parent.parent.name.removeprefix("cpu")): path.read_text().strip()
        for path in context.host.paths(
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
            cost="two hyperthreads share a core's arithmetic units: prefill scales with cores, not "
            "with CPUs",
            remedy=f"try --threads {physical} with galley bench engine; size machines by cores, not by "
            "vCPUs",
            figures={"cpus": len(used), "cores": physical},
        )
    ]


def _numa(context: Context) -> Finding:
    nodes = {}
    for path in context.host.paths("/sys/devices/system/node", "node[0-9]*/cpulist"):
        nodes[path.parent.name] = cpus_in(path.read_text().strip())
    mine = usable_cpus()
    used = sorted(name for name, cpus in nodes.items() if cpus & mine)
    if len(used) < 2:
        return Finding(
            check="NUMA",
            level="ok",
            found="one NUMA node: all cores have the same memory",
            figures={"nodes": 1},
        )
    return Finding(
        check="NUMA",
        level="warning",
        found=f"the cores are on {len(used)} NUMA nodes ({', '.join(used)})",
        cost="weights are on one node: cores of other nodes read them at half to two thirds of its "
        "bandwidth",
        remedy="run one server per node: numactl --cpunodebind=0 --membind=0 galley serve ..., or a pod "
        "with a single-node topology policy",
        figures={"nodes": len(used)},
    )


def _load(context: Context) -> list[Finding]:
    """Report the present load of other processes: those that were runnable recently."""
    words = context.host.text("/proc/loadavg").split()
    if not words:
        return []
    cores = available_cores(context.host.cgroup, context.host.membership)
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
            found=f"load {load:.2f} on {cores} cores: other processes use them",
            cost="a step waits for its slowest thread, so other processes on its cores delay it",
            remedy="move them, or reserve cores for Galley (taskset, cpuset) and set --threads to "
            "their number",
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
