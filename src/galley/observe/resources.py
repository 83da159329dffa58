"""Metrics of a server's resource usage: memory of the container and processes, and GPUs."""

import mmap
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from galley import __version__
from galley.machine import memory

Processes: TypeAlias = Callable[[], Mapping[str, Mapping[str, Sequence[int]]]]
"""Model -> kind of process -> process ids."""

GPU_METRICS: Final = {
    "galley_gpu_memory_used_bytes": "GPU memory in use",
    "galley_gpu_memory_total_bytes": "GPU memory",
    "galley_gpu_utilization_ratio": "Share of time in which the GPU was busy",
    "galley_gpu_power_watts": "Power draw of the GPU",
    "galley_gpu_temperature_celsius": "Temperature of the GPU",
}
"""Name -> help of the metrics that exist only if NVML finds a GPU."""

_PAGE_BYTES: Final = mmap.PAGESIZE


class ResourceCollector(Collector):
    """Collects the resource metrics at each scrape."""

    def __init__(self, processes: Processes) -> None:
        """Create the collector; ``processes`` returns the models' processes, without the server's."""
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        build = InfoMetricFamily("galley_build", "The running version")
        python = platform.python_version()
        build.add_metric(
            [], {"version": __version__, "python": python, "machine": platform.machine()}
        )
        yield build
        for part, bytes_ in memory()._asdict().items():
            meaning = f"Memory of the container, or of the machine: {part}"
            yield GaugeMetricFamily(f"galley_memory_{part}_bytes", meaning, value=bytes_)
        yield self._resident()
        yield from _gpus()

    def _resident(self) -> Metric:
        family = GaugeMetricFamily(
            "galley_process_resident_bytes",
            "Memory of processes, by kind",
            labels=["process", "model"],
        )
        family.add_metric(["server", ""], _resident_bytes(os.getpid()))
        for model, kinds in self._processes().items():
            for kind, ids in kinds.items():
                family.add_metric([kind, model], sum(map(_resident_bytes, ids)))
        return family


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES
    return 0


@cache
def load_nvml() -> Any:
    """Initialize and return NVIDIA's NVML; None without a driver or the package ``nvidia-ml-py``."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or NVMLError of many kinds
        return None
    return pynvml


def _gpus() -> Iterator[Metric]:
    nvml = load_nvml()
    if nvml is None:
        return
    families = {
        name: GaugeMetricFamily(name, meaning, labels=["gpu", "name"])
        for name, meaning in GPU_METRICS.items()
    }
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        labels = [str(index), str(nvml.nvmlDeviceGetName(device))]
        for name, read in _READINGS.items():
            with suppress(nvml.NVMLError):  # a device may lack a sensor
                families[name].add_metric(labels, read(nvml, device))
    yield from families.values()


_READINGS: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    "galley_gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "galley_gpu_memory_total_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "galley_gpu_utilization_ratio": lambda nvml, gpu: (
        nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    ),
    "galley_gpu_power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "galley_gpu_temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
}
