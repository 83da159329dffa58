"""The networks of diarization are converted as torch computes them."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from recipes.speakers.campplus import BLOCKS, campplus
from recipes.speakers.convert import read, resemblyzer, segmentation, sinc_filters

Module = TypeVar("Module", bound=nn.Module)


def filled(module: Module) -> Module:
    """Give a module random weights that float16 has exactly."""
    generator = torch.Generator().manual_seed(0)
    for name, value in module.named_parameters():
        scale = 1.0 if "norm" in name else 0.2
        value.data = (torch.randn(value.shape, generator=generator) * scale).half().float()
    return module


def run(model: object, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())  # type: ignore[attr-defined]
    return np.asarray(session.run(None, inputs)[0])


def test_resemblyzers_encoder_is_the_one_of_torch() -> None:
    net = filled(
        nn.ModuleDict({"lstm": nn.LSTM(40, 16, 3, batch_first=True), "linear": nn.Linear(16, 256)})
    )
    mels = torch.rand(3, 20, 40)
    with torch.no_grad():
        _, (state, _) = net["lstm"](mels)
        expected = functional.normalize(functional.relu(net["linear"](state[-1])), dim=1)
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    assert np.allclose(run(resemblyzer(weights), mels=mels.numpy()), expected, atol=1e-5)


class _CamPlus:
    """CAM++ by its paper, with weights by the names that 3D-Speaker's checkpoints have."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.weights: dict[str, torch.Tensor] = {}

    def _weight(self, name: str, *shape: int) -> torch.Tensor:
        scale = float(np.prod(shape[1:])) ** -0.5
        value = torch.randn(shape, generator=self.generator) * scale
        return self.weights.setdefault(f"{name}.weight", value.half().float())

    def conv(
        self, x: torch.Tensor, name: str, out: int, kernel: int, **options: object
    ) -> torch.Tensor:
        apply: Any = functional.conv1d if x.dim() == 3 else functional.conv2d
        shape = (out, x.shape[1], *[kernel] * (x.dim() - 2))
        bias = None
        if "cam_layer.linear" in name and "local" not in name:
            bias = self.weights.setdefault(
                f"{name}.bias", torch.linspace(-1, 1, out).half().float()
            )
        result: torch.Tensor = apply(x, self._weight(name, *shape), bias, **options)
        return result

    def norm(self, x: torch.Tensor, name: str, *, affine: bool = True) -> torch.Tensor:
        count = x.shape[1]
        mean = self.weights.setdefault(f"{name}.running_mean", torch.linspace(-0.2, 0.2, count))
        variance = self.weights.setdefault(f"{name}.running_var", torch.linspace(0.5, 2, count))
        if not affine:
            return functional.batch_norm(x, mean, variance)
        gain = self.weights.setdefault(f"{name}.weight", torch.linspace(0.8, 1.2, count))
        shift = self.weights.setdefault(f"{name}.bias", torch.linspace(-0.1, 0.1, count))
        return functional.batch_norm(x, mean, variance, gain, shift)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        x = features.transpose(1, 2)[:, None]
        x = self.norm(self.conv(x, "head.conv1", 32, 3, padding=1), "head.bn1").relu()
        for layer in (1, 2):
            for number, stride in enumerate((2, 1)):
                x = self._residual(x, f"head.layer{layer}.{number}", stride)
        x = self.norm(
            self.conv(x, "head.conv2", 32, 3, padding=1, stride=(2, 1)), "head.bn2"
        ).relu()
        x = self.conv(x.flatten(1, 2), "xvector.tdnn.linear", 128, 5, padding=2, stride=2)
        x = self.norm(x, "xvector.tdnn.nonlinear.batchnorm").relu()
        for block, (layers, dilation) in enumerate(BLOCKS, 1):
            for layer in range(1, layers + 1):
                x = self._dense(x, f"xvector.block{block}.tdnnd{layer}", dilation)
            name = f"xvector.transit{block}"
            x = self.norm(x, f"{name}.nonlinear.batchnorm").relu()
            x = self.conv(x, f"{name}.linear", x.shape[1] // 2, 1)
        x = self.norm(x, "xvector.out_nonlinear.batchnorm").relu()
        x = torch.cat([x.mean(-1), x.std(-1)], 1)[..., None]
        x = self.conv(x, "xvector.dense.linear", 192, 1)
        return self.norm(x, "xvector.dense.nonlinear.batchnorm", affine=False)[..., 0]

    def _residual(self, x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        y = self.conv(x, f"{name}.conv1", 32, 3, padding=1, stride=(stride, 1))
        y = self.norm(y, f"{name}.bn1").relu()
        y = self.norm(self.conv(y, f"{name}.conv2", 32, 3, padding=1), f"{name}.bn2")
        if stride != 1:
            x = self.conv(x, f"{name}.shortcut.0", 32, 1, stride=(stride, 1))
            x = self.norm(x, f"{name}.shortcut.1")
        return (y + x).relu()

    def _dense(self, x: torch.Tensor, name: str, dilation: int) -> torch.Tensor:
        y = self.norm(x, f"{name}.nonlinear1.batchnorm").relu()
        y = self.norm(
            self.conv(y, f"{name}.linear1", 128, 1), f"{name}.nonlinear2.batchnorm"
        ).relu()
        cam = f"{name}.cam_layer"
        local = self.conv(y, f"{cam}.linear_local", 32, 3, padding=dilation, dilation=dilation)
        parts = [part.mean(-1, keepdim=True).expand_as(part) for part in torch.split(y, 100, -1)]
        context = y.mean(-1, keepdim=True) + torch.cat(parts, -1)
        gate = self.conv(
            self.conv(context, f"{cam}.linear1", 64, 1).relu(), f"{cam}.linear2", 32, 1
        )
        return torch.cat([x, local * gate.sigmoid()], 1)


@pytest.mark.parametrize("frames", [158, 420])
def test_campplus_is_that_of_its_paper(frames: int) -> None:
    net = _CamPlus()
    features = torch.randn(2, frames, 80, generator=net.generator)
    with torch.no_grad():
        expected = net(features).numpy()
    model = campplus({name: value.numpy() for name, value in net.weights.items()})
    assert np.allclose(run(model, feature=features.numpy()), expected, atol=1e-3)


class _Sinc(nn.Module):
    """The layers of pyannote's segmentation, with the filters given."""

    def __init__(self) -> None:
        super().__init__()
        self.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        self.conv1d = nn.ModuleList([nn.Identity(), nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)])
        self.norm1d = nn.ModuleList(nn.InstanceNorm1d(n, affine=True) for n in (80, 60, 60))

    def forward(self, samples: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        x = self.wav_norm1d(samples)
        x = functional.conv1d(x, filters, stride=10).abs()
        for number in range(3):
            x = x if number == 0 else self.conv1d[number](x)
            x = functional.leaky_relu(self.norm1d[number](functional.max_pool1d(x, 3)))
        return x


def test_segmentation_is_the_one_of_torch() -> None:
    sinc = filled(_Sinc())
    rest = filled(
        nn.ModuleDict(
            {
                "lstm": nn.LSTM(60, 8, 4, batch_first=True, bidirectional=True),
                "linear": nn.ModuleList([nn.Linear(16, 12), nn.Linear(12, 12)]),
                "classifier": nn.Linear(12, 7),
            }
        )
    )
    bank = {
        "low_hz_": np.linspace(30, 7_000, 40, dtype=np.float32)[:, None],
        "band_hz_": np.full((40, 1), 120, np.float32),
        "window_": np.hamming(251)[:125].astype(np.float32),
    }
    filters = torch.tensor(sinc_filters(*bank.values())).half().float()
    samples = torch.randn(2, 1, 4_000)
    with torch.no_grad():
        x, _ = rest["lstm"](sinc(samples, filters).transpose(1, 2))
        for number in (0, 1):
            x = functional.leaky_relu(rest.get_submodule(f"linear.{number}")(x))
        sets = torch.softmax(rest["classifier"](x), -1)
        one, two, three, one_two, one_three, two_three = sets[..., 1:].unbind(-1)
        expected = torch.stack(
            [one + one_two + one_three, two + one_two + two_three, three + one_three + two_three],
            -1,
        )
    weights = {f"sincnet.{n}": v.detach().numpy() for n, v in sinc.state_dict().items()}
    weights |= {n: v.detach().numpy() for n, v in rest.state_dict().items()}
    weights |= {f"sincnet.conv1d.0.filterbank.{n}": v for n, v in bank.items()}
    assert np.allclose(
        run(segmentation(weights, window=4_000), samples=samples.numpy()), expected, atol=1e-3
    )


def test_filters_pass_their_band_and_no_other() -> None:
    """SincNet's filters are band-passes: their spectra show the band."""
    low, band = np.array([[950.0]]), np.array([[450.0]])  # 1,000 to 1,500 Hz
    filters = sinc_filters(low, band, np.hamming(251)[:125])
    for taps in filters[:, 0]:
        power = np.abs(np.fft.rfft(taps, 4_000)) ** 2
        hertz = np.fft.rfftfreq(4_000, 1 / 16_000)
        within = power[(hertz > 1_100) & (hertz < 1_400)].min()
        outside = power[(hertz < 800) | (hertz > 1_700)].max()
        assert within > 100 * outside


def test_a_checkpoint_is_read_without_its_objects(tmp_path: Path) -> None:
    file = tmp_path / "file.pt"
    torch.save({"state": {"a": torch.ones(2)}, "other": Path("x").suffix}, file)
    assert read(file, "state")["a"].tolist() == [1.0, 1.0]
