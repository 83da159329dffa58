"""Findings about the state of GPUs, from what NVML reports of them."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from galley.doctor.findings import Context, Host
from galley.doctor.gpu_state import GpuState, check, judge, read
from galley.settings.config import Settings

FINE = GpuState(
    name="NVIDIA H200",
    mig=False,
    ecc=True,
    power_limit=700.0,
    power_default=700.0,
    clock_reasons=0x01,  # idle
    pcie_width=16,
    pcie_width_max=16,
)


def test_a_gpu_as_delivered_has_no_finding() -> None:
    assert judge(FINE) == []
    assert judge(GpuState(name="unknown")) == []
    assert judge(replace(FINE, clock_reasons=0x04)) == []  # at the power limit


@pytest.mark.parametrize(
    ("change", "name", "level", "says"),
    [
        ({"mig": True}, "GPU instances", "note", "instances"),
        ({"ecc": False}, "GPU memory errors", "warning", "ECC is off"),
        ({"power_limit": 350.0}, "GPU power", "warning", "350 W; its default is 700 W"),
        ({"clock_reasons": 0x41}, "GPU clocks", "warning", "by the hardware, for heat"),
        ({"clock_reasons": 0x02}, "GPU clocks", "warning", "set by an administrator"),
        ({"pcie_width": 4}, "GPU link", "warning", "4 PCIe lanes of 16"),
    ],
)
def test_each_deviation_is_a_finding(
    change: dict[str, Any], name: str, level: str, says: str
) -> None:
    [finding] = judge(replace(FINE, **change))
    assert (finding.check, finding.level) == (name, level)
    assert says in finding.found
    assert finding.cost
    assert finding.remedy


def test_what_a_package_or_a_device_does_not_report_is_left_out() -> None:
    class NVMLError(Exception):
        pass

    def without_ecc(device: object) -> None:
        raise NVMLError

    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetName=lambda device: "NVIDIA T4",
        nvmlDeviceGetEccMode=without_ecc,
        nvmlDeviceGetCurrPcieLinkWidth=lambda device: 8,
    )
    assert read(library, object()) == GpuState(name="NVIDIA T4", pcie_width=8)


def test_nothing_is_read_where_the_gpu_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert check(Context(Settings(), Host(Path("/nowhere")))) == []
