"""Measured memory bandwidth and arithmetic against the expected figures of the CPU, and interference."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from galley.bench.machine import measure_machine
from galley.bench.report import Machine as Measured
from galley.bench.report import Spread
from galley.doctor.findings import Context, Finding
from galley.errors import SettingsError

TABLE: Final = Path(__file__).with_name("processors.yaml")

_READ_BYTES: Final = 256 << 20
_SECONDS: Final = 0.08
_REPEATS: Final = 5
_FAIR: Final = 0.7
"""Share of the expected figure below which a finding is reported."""

_UNSTEADY: Final = 0.25
"""Spread of five measurements, as a share of their median, that indicates interference."""

_STOLEN: Final = 0.02
"""Share of CPU time stolen by the hypervisor, from which a finding is reported."""

_CPU_FIELDS: Final = 8
_STEAL: Final = 7
"""Index of stolen time among the fields of a line of /proc/stat (proc(5))."""

Positive = Annotated[float, Meta(gt=0)]


class Processor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of CPUs, with the figures that its maker states.

    Attributes:
        name: of the line.
        match: regular expression over "vendor family/model name", as /proc/cpuinfo has them.
        ghz: of all cores under load, boost included.
        operations: kind of product -> operations of a core in a cycle; a multiply-add is two.
        bandwidth: of a socket, in GB/s.
        cores: of a socket that has this bandwidth.
        sources: of the figures.
    """

    name: str
    match: str
    ghz: Positive
    operations: Mapping[str, Positive]
    bandwidth: Positive
    cores: Annotated[int, Meta(gt=0)]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interference:
    """Losses during the measurement: a share of the CPUs' time; stops by the container's quota."""

    stolen: float
    throttled: int


def check(context: Context) -> list[Finding]:
    """Measure bandwidth, arithmetic and interference, with all cores, for some seconds."""
    before, stops = cpu_times(context), throttled(context)
    try:
        measured = measure_machine(
            threads=context.settings.threads,
            memory_bytes=_READ_BYTES,
            seconds=_SECONDS,
            repeats=_REPEATS,
        )
    except SettingsError as error:
        return [Finding(check="speed", level="warning", found=f"measurement failed: {error}")]
    interference = Interference(
        stolen_share(before, cpu_times(context)), throttled(context) - stops
    )
    processor = processor_of(context)
    return [
        bandwidth(measured, processor),
        arithmetic(measured, processor),
        steadiness(measured, interference),
        *governor(context),
    ]


def bandwidth(measured: Measured, processor: Processor | None) -> Finding:
    """Compare memory bandwidth with the fair share of a socket's."""
    rate = measured.read_huge.median / 1e9
    figures: dict[str, float | str] = {
        "GB_per_s": rate,
        "small_pages": measured.read_small.median / 1e9,
    }
    if processor is None:
        return Finding(
            check="memory bandwidth",
            level="note",
            found=f"{rate:.1f} GB/s on {measured.threads} threads; this CPU is not in the table",
            figures=figures,
        )
    fair = processor.bandwidth / processor.cores * measured.threads
    figures |= {"fair_GB_per_s": fair, "processor": processor.name}
    found = (
        f"{rate:.1f} GB/s on {measured.threads} threads, whose share of the {processor.bandwidth:.0f} GB/s "
        f"of a {processor.name} is {fair:.1f}"
    )
    if rate >= _FAIR * fair:
        return Finding(check="memory bandwidth", level="ok", found=found, figures=figures)
    return Finding(
        check="memory bandwidth",
        level="warning",
        found=found,
        cost=f"decoding is bound by bandwidth: about {rate / fair:.0%} of the expected tokens per second",
        remedy="other virtual machines on this host use the bandwidth, or memory channels are empty "
        "(dmidecode -t memory): measure again later, or use another host",
        figures=figures,
    )


def arithmetic(measured: Measured, processor: Processor | None) -> Finding:
    """Compare the kernels' products with the maker's operations in a cycle."""
    rates = {kind: spread.median / 1e9 for kind, spread in measured.operations.items()}
    figures: dict[str, float | str] = {f"{kind}_GOPS": rate for kind, rate in rates.items()}
    said = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in rates.items())
    if processor is None:
        return Finding(
            check="arithmetic",
            level="note",
            found=f"{said} GOPS on {measured.threads} threads; this CPU is not in the table",
            figures=figures,
        )
    peaks = {
        kind: per_cycle * processor.ghz * measured.threads
        for kind, per_cycle in processor.operations.items()
    }
    kind, share = min(
        ((kind, rates[kind] / peak) for kind, peak in peaks.items() if kind in rates),
        key=lambda pair: pair[1],
    )
    figures |= {f"{kind}_peak_GOPS": peak for kind, peak in peaks.items()}
    found = (
        f"{said} GOPS on {measured.threads} threads of a {processor.name}; "
        f"{kind} is {share:.0%} of its peak"
    )
    if share >= _FAIR:
        return Finding(check="arithmetic", level="ok", found=found, figures=figures)
    return Finding(
        check="arithmetic",
        level="warning",
        found=found,
        cost=f"prefill and large batches run at about {share:.0%} of the speed expected of these cores",
        remedy="the clock is throttled (heat, power limit), the CPUs are hyperthreads of fewer cores, or "
        "other processes use them: see the other findings",
        figures=figures,
    )


def steadiness(measured: Measured, interference: Interference) -> Finding:
    """Report whether others used the cores during the measurement."""
    spreads = {"memory": measured.read_huge, **measured.operations}
    what, worst = max(((name, _spread(s)) for name, s in spreads.items()), key=lambda pair: pair[1])
    figures: dict[str, float | str] = {
        "stolen": interference.stolen,
        "throttled": interference.throttled,
        "spread": worst,
    }
    found = (
        f"{interference.stolen:.1%} of CPU time stolen by the hypervisor, throttled "
        f"{interference.throttled} "
        f"times by the quota, measurements vary by {worst:.0%} ({what})"
    )
    if interference.throttled:
        return Finding(
            check="neighbors",
            level="problem",
            found=found,
            cost="the kernel stops all threads for the rest of each period, so streams stutter",
            remedy="set --threads below the quota, or use a quota of whole cores (requests = limits in "
            "Kubernetes)",
            figures=figures,
        )
    if interference.stolen > _STOLEN or worst > _UNSTEADY:
        return Finding(
            check="neighbors",
            level="warning",
            found=found,
            cost="latency, above all P99, depends on what else runs on the host",
            remedy="use dedicated cores or another host; overheating looks the same (dmesg | grep -i "
            "throttl)",
            figures=figures,
        )
    return Finding(check="neighbors", level="ok", found=found, figures=figures)


def _spread(rates: Spread) -> float:
    return (rates.high - rates.low) / rates.median


def governor(context: Context) -> list[Finding]:
    """Report whether the clock stays low while cores idle between requests."""
    paths = context.host.paths("/sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_governor")
    governors = {path.read_text().strip() for path in paths}
    if not governors & {"powersave", "conservative"}:
        return []
    drivers = context.host.paths("/sys/devices/system/cpu", "cpu0/cpufreq/scaling_driver")
    if drivers and drivers[0].read_text().strip() in ("intel_pstate", "amd-pstate-epp"):
        return []  # whose "powersave" raises the clock with the load
    return [
        Finding(
            check="clock",
            level="warning",
            found=f"the frequency governor is {', '.join(sorted(governors))}",
            cost="cores that idle between requests start each one at a low clock",
            remedy="cpupower frequency-set -g performance",
            figures={"governor": ", ".join(sorted(governors))},
        )
    ]


def processor_of(context: Context, table: Path = TABLE) -> Processor | None:
    """Return the row of the table for this CPU, if there is one."""
    import yaml

    text = context.host.text("/proc/cpuinfo")
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    }
    known = ("vendor_id", "cpu family", "model", "model name")
    vendor, family, model, name = (fields.get(field, "") for field in known)
    key = f"{vendor} {family}/{model} {name}"
    rows = msgspec.convert(yaml.safe_load(table.read_text(encoding="utf-8")), list[Processor])
    return next((row for row in rows if re.match(row.match, key)), None)


def cpu_times(context: Context) -> list[int]:
    """Return the times of all CPUs, in ticks, by the fields of proc(5).

    These are user, nice, system, idle, iowait, irq, softirq and steal.
    """
    line = context.host.text("/proc/stat").partition("\n")[0].split()
    return [int(word) for word in line[1 : 1 + _CPU_FIELDS]]


def stolen_share(before: list[int], after: list[int]) -> float:
    """Return the share of the CPUs' time between two readings that the hypervisor gave to others."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    total = sum(spent)
    return spent[_STEAL] / total if len(spent) == _CPU_FIELDS and total else 0.0


def throttled(context: Context) -> int:
    """Return how often the kernel has stopped this process's control group for exceeding its quota."""
    stops = 0
    for line in context.host.text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            folder = context.host.cgroup / ("cpu" if controllers else "") / path.strip("/")
            try:
                found = re.search(r"nr_throttled (\d+)", (folder / "cpu.stat").read_text())
            except OSError:
                continue
            stops = max(stops, int(found[1]) if found else 0)
    return stops
