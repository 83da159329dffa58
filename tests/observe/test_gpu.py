"""GPUs are reported where NVML finds some, and nowhere else."""

from types import SimpleNamespace

import pytest

from galley.observe import resources
from galley.observe.metrics import Metrics


class NvmlError(Exception):
    """NVML's error for a sensor that a device lacks."""


def no_sensor(_: object) -> int:
    raise NvmlError


STAND_IN = SimpleNamespace(
    NVMLError=NvmlError,
    NVML_TEMPERATURE_GPU=0,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetName=lambda gpu: f"GPU {gpu}",
    nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=10 + gpu, total=100),
    nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=50),
    nvmlDeviceGetPowerUsage=no_sensor,
    nvmlDeviceGetTemperature=lambda gpu, _: 40 + gpu,
)
"""A replacement for nvidia-ml-py on machines without a GPU."""


def test_gpus_have_their_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "galley_gpu" not in Metrics().render().decode() or resources.load_nvml() is not None
    monkeypatch.setattr(resources, "load_nvml", lambda: STAND_IN)
    page = Metrics().render().decode()
    assert 'galley_gpu_memory_used_bytes{gpu="1",name="GPU 1"} 11.0' in page
    assert 'galley_gpu_utilization_ratio{gpu="0",name="GPU 0"} 0.5' in page
    assert 'galley_gpu_temperature_celsius{gpu="1",name="GPU 1"} 41.0' in page
    assert "# TYPE galley_gpu_power_watts gauge" in page
    assert "galley_gpu_power_watts{" not in page
