"""The rates of a made-up machine."""

from galley.bench.report import Machine, Spread


def peaks_of(rate: float, *, cpu: str = "a CPU") -> Machine:
    """Return a machine that reads and computes everything at one rate."""
    spread = Spread(rate, rate, rate)
    return Machine(
        cpu=cpu,
        isa="avx2",
        cores=2,
        threads=2,
        caches=(),
        read_huge=spread,
        read_small=spread,
        operations={"int8": spread, "bf16": spread, "float32": spread},
    )
