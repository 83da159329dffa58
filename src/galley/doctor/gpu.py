"""Checks of GPUs, and whether driver, CUDA and torch are compatible. torch itself is not imported."""

import importlib.util
import re
from pathlib import Path
from typing import Final

from galley.doctor.findings import Context, Finding
from galley.errors import pip_install

_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAYS: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Prefixes of the PCI classes of display controllers and accelerators."""

_NVIDIA: Final = "/proc/driver/nvidia/version"

_LEAST_DRIVER: Final = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> minimum major version of NVIDIA's driver for Linux.

From CUDA's release notes, "minor version compatibility".
"""


def check(context: Context) -> list[Finding]:
    """Check the GPUs; return nothing where there is no GPU and none is requested."""
    found = devices(context)
    wanted = context.settings.device != "cpu"
    if not found:
        return [_missing(context)] if wanted else []
    driver = driver_version(context)
    if driver is None and "NVIDIA" in found:
        return [
            Finding(
                check="GPU",
                level="problem" if wanted else "note",
                found=f"{', '.join(found)} on the bus, but NVIDIA's driver is not loaded",
                cost="models run on the CPU only",
                remedy="install the driver (see nvidia-smi); containers need nvidia-container-toolkit",
            )
        ]
    said = f"{', '.join(found)}, driver {driver or 'amdgpu'}"
    return [_judged(said, driver, torch_cuda(), wanted=wanted, executor=context.settings.executor)]


def _missing(context: Context) -> Finding:
    return Finding(
        check="GPU",
        level="problem",
        found=f"device is {context.settings.device}, but no GPU was found",
        cost="galley serve does not start",
        remedy="--device cpu, or pass the GPU to the container (docker run --gpus all)",
    )


def _judged(
    said: str, driver: str | None, cuda: str | None, *, wanted: bool, executor: str
) -> Finding:
    """Compare torch's CUDA with the driver. ``cuda``: "" for a build without, None for no torch."""
    figures: dict[str, float | str] = {"driver": driver or "", "torch_cuda": cuda or ""}
    if cuda is None:
        return Finding(
            check="GPU",
            level="problem" if wanted else "note",
            found=f"{said}; torch is not installed",
            cost="the GPU is not used",
            remedy=f"{pip_install('torch')}, then --device cuda",
            figures=figures,
        )
    if not cuda:
        return Finding(
            check="GPU",
            level="problem" if wanted else "warning",
            found=f"{said}; torch is a build without CUDA",
            cost="the GPU is not used",
            remedy="install torch from the index for your CUDA (pytorch.org, Get Started)",
            figures=figures,
        )
    least = _LEAST_DRIVER.get(int(cuda.partition(".")[0]))
    if driver is not None and least is not None and int(driver.partition(".")[0]) < least:
        return Finding(
            check="GPU",
            level="problem" if wanted else "warning",
            found=f"{said}; torch is built for CUDA {cuda}, which needs a driver of {least} or later",
            cost="torch cannot use the GPU",
            remedy=f"install driver {least} or later, or torch for an older CUDA",
            figures=figures,
        )
    if wanted and executor in ("auto", "gpu") and not has_triton():
        named = executor == "gpu"
        return Finding(
            check="GPU",
            level="problem" if named else "warning",
            found=f"{said}; torch for CUDA {cuda}, but Triton is not installed",
            cost="executor gpu does not start" if named else "models run many times slower",
            remedy=f"{pip_install('gpu')}, or --executor reference",
            figures=figures,
        )
    return Finding(
        check="GPU",
        level="ok" if wanted else "note",
        found=f"{said}; torch for CUDA {cuda}",
        cost="" if wanted else "device is cpu, so the GPU is not used",
        remedy="" if wanted else "--device cuda",
        figures=figures,
    )


def devices(context: Context) -> list[str]:
    """Return the makers of the GPUs on the PCI bus."""
    found = []
    for path in context.host.paths("/sys/bus/pci/devices", "*/class"):
        vendor = _VENDORS.get((path.parent / "vendor").read_text().strip())
        if vendor and path.read_text().strip().startswith(_DISPLAYS):
            found.append(vendor)
    if not found and context.host.text(_NVIDIA):
        found.append("NVIDIA")
    return found


def driver_version(context: Context) -> str | None:
    """Return the version of NVIDIA's driver, if it is loaded."""
    match = re.search(r"Kernel Module\D*?(\d+\.[\d.]+)", context.host.text(_NVIDIA))
    return match[1] if match else None


def has_triton() -> bool:
    """Return whether the GPU executor's compiler is installed; it is not imported."""
    return importlib.util.find_spec("triton") is not None


def torch_cuda() -> str | None:
    """Return the CUDA version for which torch was built; empty for none, None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return cuda_of(Path(spec.origin).with_name("version.py"))


def cuda_of(version_file: Path) -> str:
    """Return the version as :func:`torch_cuda` does, from torch's ``version.py``."""
    try:
        match = re.search(
            r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", version_file.read_text(), re.MULTILINE
        )
    except OSError:
        return ""
    return match[1] if match else ""
