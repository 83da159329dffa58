"""The networks of diarization are converted as torch computes them."""

from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.nn import functional

from recipes.speakers.convert import encoder, read, segmentation, sinc_filters

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


def test_the_encoder_is_the_one_of_torch() -> None:
    net = filled(
        nn.ModuleDict({"lstm": nn.LSTM(40, 16, 3, batch_first=True), "linear": nn.Linear(16, 256)})
    )
    mels = torch.rand(3, 20, 40)
    with torch.no_grad():
        _, (state, _) = net["lstm"](mels)
        expected = functional.normalize(functional.relu(net["linear"](state[-1])), dim=1)
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    assert np.allclose(run(encoder(weights), mels=mels.numpy()), expected, atol=1e-5)


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
            [one + one_two + one_three, two + one_two + two_three, three + one_three + two_three], -1
        )
    weights = {f"sincnet.{n}": v.detach().numpy() for n, v in sinc.state_dict().items()}
    weights |= {n: v.detach().numpy() for n, v in rest.state_dict().items()}
    weights |= {f"sincnet.conv1d.0.filterbank.{n}": v for n, v in bank.items()}
    assert np.allclose(run(segmentation(weights, window=4_000), samples=samples.numpy()), expected, atol=1e-3)


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
