"""Checks of how NVIDIA GPUs are set and linked: MIG, ECC, power limit, clocks, PCIe; read through NVML."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from galley.doctor.findings import Context, Finding
from galley.observe.resources import load_nvml

_SLOWED: Final = {
    0x02: "the clocks set by an administrator",
    0x08: "the hardware, for heat or power",
    0x20: "the driver, for heat",
    0x40: "the hardware, for heat",
    0x80: "the power supply",
}
"""Bit of NVML's clock event reasons -> what slows the clocks down; without idleness and the power limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The state of a GPU as NVML reports it; None: not reported.

    Attributes:
        name: the product's name.
        mig: whether the GPU is divided into instances.
        ecc: whether its memory corrects errors.
        power_limit, power_default: watts.
        clock_reasons: NVML's clock event reasons, as bits.
        pcie_width, pcie_width_max: lanes of the link, and those that the GPU and the slot can have.
    """

    name: str
    mig: bool | None = None
    ecc: bool | None = None
    power_limit: float | None = None
    power_default: float | None = None
    clock_reasons: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


def check(context: Context) -> list[Finding]:
    """Check each GPU that NVML shows, where the GPU is used."""
    library = load_nvml() if context.settings.device != "cpu" else None
    if library is None:
        return []
    count = library.nvmlDeviceGetCount()
    states = [read(library, library.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    return [finding for state in states for finding in judge(state)]


def read(library: Any, device: Any) -> GpuState:
    """Return the state of ``device``, a handle of the ``library`` NVML."""

    def value(name: str) -> Any:
        # A device may not support the query, or the installed package may not have it.
        with suppress(library.NVMLError, AttributeError):
            return getattr(library, f"nvmlDeviceGet{name}")(device)
        return None

    def current(name: str) -> bool | None:
        """Return the first of the (current, pending) settings."""
        modes = value(name)
        return None if modes is None else bool(modes[0])

    def watts(name: str) -> float | None:
        milliwatts = value(name)
        return None if milliwatts is None else milliwatts / 1000

    return GpuState(
        name=str(value("Name")),
        mig=current("MigMode"),
        ecc=current("EccMode"),
        power_limit=watts("PowerManagementLimit"),
        power_default=watts("PowerManagementDefaultLimit"),
        clock_reasons=value("CurrentClocksEventReasons"),
        pcie_width=value("CurrPcieLinkWidth"),
        pcie_width_max=value("MaxPcieLinkWidth"),
    )


def judge(state: GpuState) -> list[Finding]:
    """Return the findings about one GPU; none if all is as the maker delivers it."""
    return [*_modes(state), *_power(state), *_clocks(state), *_link(state)]


def _modes(state: GpuState) -> list[Finding]:
    found = []
    if state.mig:
        found.append(
            Finding(
                check="GPU instances",
                level="note",
                found=f"{state.name} is divided into instances (MIG)",
                cost="a process has the memory and the units of one instance only",
                remedy="choose it with CUDA_VISIBLE_DEVICES=MIG-..., or turn MIG off (nvidia-smi -mig 0)",
            )
        )
    if state.ecc is False:
        found.append(
            Finding(
                check="GPU memory errors",
                level="warning",
                found=f"ECC is off on {state.name}",
                cost="a flipped bit changes weights or texts unnoticed",
                remedy="nvidia-smi -e 1, then reset the GPU",
            )
        )
    return found


def _power(state: GpuState) -> list[Finding]:
    limit, default = state.power_limit, state.power_default
    if limit is None or default is None or limit >= default:
        return []
    return [
        Finding(
            check="GPU power",
            level="warning",
            found=f"{state.name} is limited to {limit:.0f} W; its default is {default:.0f} W",
            cost="lower clocks in prefill and large batches",
            remedy=f"nvidia-smi -pl {default:.0f}, if the machine's supply and cooling allow it",
            figures={"power_limit_w": limit, "power_default_w": default},
        )
    ]


def _clocks(state: GpuState) -> list[Finding]:
    reasons = [text for bit, text in _SLOWED.items() if (state.clock_reasons or 0) & bit]
    if not reasons:
        return []
    return [
        Finding(
            check="GPU clocks",
            level="warning",
            found=f"the clocks of {state.name} are held down by {', and by '.join(reasons)}",
            cost="slower steps than this GPU can do",
            remedy="see nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE; nvidia-smi -rac resets set clocks",
            figures={"clock_event_reasons": float(state.clock_reasons or 0)},
        )
    ]


def _link(state: GpuState) -> list[Finding]:
    width, most = state.pcie_width, state.pcie_width_max
    if not width or not most or width >= most:
        return []
    return [
        Finding(
            check="GPU link",
            level="warning",
            found=f"{state.name} has {width} PCIe lanes of {most}",
            cost="weights are loaded more slowly",
            remedy="check the slot and its riser; some slots share lanes",
            figures={"pcie_width": float(width), "pcie_width_max": float(most)},
        )
    ]
