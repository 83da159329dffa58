"""The models that are measured: boosted trees, an encoder of texts, and a classifier of images."""

from pathlib import Path
from typing import Any, Final

import numpy as np

FEATURES: Final = 30
TOKENS: Final = 32
VOCABULARY: Final = 30522
CLASSES: Final = 1000


def write_models(folder: Path) -> None:
    """Write the files that are missing: ``trees.json``, ``text.onnx`` and ``image.onnx``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in (("trees.json", _trees), ("text.onnx", _text), ("image.onnx", _image)):
        if not (folder / name).exists():
            half = folder / f"half-{name}"
            write(half)
            half.rename(folder / name)


def _trees(path: Path) -> None:
    """Train 100 trees of depth 6 on 30 features."""
    import xgboost

    source = np.random.default_rng(0)
    rows = source.normal(size=(20_000, FEATURES)).astype(np.float32)
    labels = (rows[:, :4].sum(1) + rows[:, 4] * rows[:, 5] > 0).astype(np.float32)
    data = xgboost.DMatrix(rows, labels)
    params = {"objective": "binary:logistic", "max_depth": 6, "seed": 0}
    xgboost.train(params, data, num_boost_round=100).save_model(path)


def _text(path: Path) -> None:
    """Write an encoder of MiniLM's shape (6 layers of width 384) with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config, add_pooling_layer=False)

        def forward(self, ids: Any) -> Any:
            return self.bert(ids).last_hidden_state[:, 0]

    _export(path, Encoder(), torch.ones(2, TOKENS, dtype=torch.int64), "ids", "vector")


def _image(path: Path) -> None:
    """Write a classifier of SqueezeNet 1.1's shape (1.24 million weights, 5 MB) with random weights."""
    import torch
    from torch import nn

    class Fire(nn.Module):
        def __init__(self, inputs: int, narrow: int, wide: int) -> None:
            super().__init__()
            self.squeeze = nn.Sequential(nn.Conv2d(inputs, narrow, 1), nn.ReLU())
            self.one = nn.Sequential(nn.Conv2d(narrow, wide, 1), nn.ReLU())
            self.three = nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU())

        def forward(self, x: Any) -> Any:
            x = self.squeeze(x)
            return torch.cat([self.one(x), self.three(x)], 1)

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    width = 64
    for narrow, wide in ((16, 64), (16, 64), (0, 0), (32, 128), (32, 128), (0, 0), (48, 192)):
        layers.append(Fire(width, narrow, wide) if wide else nn.MaxPool2d(3, 2))
        width = 2 * wide or width
    for narrow, wide in ((48, 192), (64, 256), (64, 256)):
        layers.append(Fire(width, narrow, wide))
        width = 2 * wide
    layers += [nn.Conv2d(width, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    _export(path, nn.Sequential(*layers), torch.zeros(2, 3, 224, 224), "pixels", "scores")


def _export(path: Path, module: Any, example: Any, given: str, found: str) -> None:
    import torch

    torch.onnx.export(
        module.eval(),
        (example,),
        path,
        input_names=[given],
        output_names=[found],
        dynamic_axes={given: {0: "rows"}, found: {0: "rows"}},
        dynamo=False,
    )
