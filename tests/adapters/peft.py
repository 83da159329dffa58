"""LoRA adapters in PEFT's format, and the merged models: W + scale * B A, computed here."""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from galley.formats.adapter_files import adapter_digest
from galley.formats.weights import Floats
from galley.types import Adapter

PREFIX = "base_model.model."


def make_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 8,
    dtype: torch.dtype = torch.float32,
    targets: Collection[str] = (),
    size: float = 0.05,
    **config: Any,
) -> Adapter:
    """Write random factors for all linear layers of ``model`` except the output, or for ``targets``."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(seed)
    factors = {}
    for name, shape in linear_layers(model).items():
        if targets and name.rpartition(".")[2] not in targets:
            continue
        r = rank_of(name, rank, config)
        a, b = (
            torch.randn(r, shape[1], generator=random),
            torch.randn(shape[0], r, generator=random),
        )
        factors[f"{PREFIX}{name}.lora_A.weight"] = (size * a).to(dtype)
        factors[f"{PREFIX}{name}.lora_B.weight"] = (size * b).to(dtype)
    save_file(factors, folder / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": sorted(targets) or "all-linear",
        "use_dora": False,
        "use_rslora": False,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return adapter_in(folder)


def adapter_in(folder: Path) -> Adapter:
    return Adapter(folder.name, str(folder), adapter_digest(folder))


def linear_layers(model: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> [outputs, inputs] of the layers that adapters may change."""
    return {
        name.removesuffix(".weight"): tuple(weight.shape)
        for name, weight in load_file(model / "model.safetensors").items()
        if name.endswith("_proj.weight")
    }


def rank_of(module: str, rank: int, config: dict[str, Any]) -> int:
    patterns: dict[str, int] = config.get("rank_pattern", {})
    return next((r for end, r in patterns.items() if module.endswith(end)), rank)


def merged(model: Path, adapter: Adapter | None) -> Any:
    """Return transformers' model with the adapter merged into its weights."""
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if hasattr(loaded, "set_experts_implementation"):
        loaded.set_experts_implementation("eager")  # the other one needs wider experts
    if adapter is None:
        return loaded
    folder = Path(adapter.path)
    config = json.loads((folder / "adapter_config.json").read_text())
    factors = load_file(folder / "adapter_model.safetensors")
    weights = dict(loaded.named_parameters())
    with torch.no_grad():
        for name in [n for n in factors if n.endswith("lora_A.weight")]:
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            a, b = factors[name].float(), factors[name.replace("lora_A", "lora_B")].float()
            alphas: dict[str, float] = config.get("alpha_pattern", {})
            alpha = next((x for end, x in alphas.items() if module.endswith(end)), None)
            alpha = config["lora_alpha"] if alpha is None else alpha
            scale = alpha / (math.sqrt(len(a)) if config["use_rslora"] else len(a))
            weights[f"{module}.weight"] += scale * (b @ a)
    return loaded


def logits_of(model: Any, ids: list[int]) -> Floats:
    with torch.inference_mode():
        result: Floats = np.asarray(model(torch.tensor([ids])).logits[0].numpy())
    return result
