"""Shared code of the bundled models' recipes: optimizers, and weights as Hugging Face files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from galley import _native


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum: Keller Jordan's Muon, with updates the size of AdamW's (arXiv:2502.16982).

    Like ``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"``, but in float32: that one multiplies
    in bfloat16, which many CPUs do not support.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.02,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state, rate = self.state[matrix], group["lr"]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(mean, group["momentum"])
                size = 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - rate * group["weight_decay"])
                matrix.add_(_orthogonalised(ahead), alpha=-rate * size)


def _orthogonalised(matrix: Tensor) -> Tensor:
    """Return the matrix with singular values near 1: five steps of a quintic Newton-Schulz iteration."""
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (2.0315 * gram @ gram - 4.7750 * gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


class Optimizers:
    """Muon for the matrices of the layers, AdamW for everything else."""

    def __init__(
        self, named: Iterable[tuple[str, Tensor]], muon_rate: float, adam_rate: float
    ) -> None:
        parameters = list(named)

        def in_layers(name: str, parameter: Tensor) -> bool:
            return "layers." in name and parameter.ndim == 2

        self._peaks = (muon_rate, adam_rate)
        self._parameters = [parameter for _, parameter in parameters]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon([p for name, p in parameters if in_layers(name, p)], lr=muon_rate),
            torch.optim.AdamW(
                [p for name, p in parameters if not in_layers(name, p)],
                lr=adam_rate,
                betas=(0.9, 0.98),
                weight_decay=0.0,
            ),
        )

    def step(self, factor: float) -> None:
        """Apply the clipped gradients at `factor` of the peak rates, and clear them."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer, peak in zip(self._optimizers, self._peaks, strict=True):
            for options in optimizer.param_groups:
                options["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[dict[str, Any]]:
        """Return the state for `load`."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Continue from the result of `state`."""
        for optimizer, saved in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(saved)


def mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context that computes products in bfloat16 if the CPU supports it.

    Emulation would take eight times as long.
    """
    fast = device.type != "cpu" or not {"amx", "avx512"}.isdisjoint(_native.supported_isas())
    return torch.autocast(device.type, torch.bfloat16, enabled=fast)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write everything needed to continue; a killed write leaves the old file intact."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def write_weights(model: nn.Module, folder: Path) -> None:
    """Write all parameters as bf16 `model.safetensors`, under Hugging Face's prefix `model.`."""
    weights = {
        f"model.{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.named_parameters()
    }
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))


def read_weights(model: nn.Module, folder: Path) -> None:
    """Read a file of `write_weights`, as float32 values of the bf16 weights."""
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(
        {name.removeprefix("model."): weight.float() for name, weight in weights.items()}
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write indented JSON, as Hugging Face formats its configs."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
