"""The demo model in torch: a small Llama decoder that writes Hugging Face checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..training import read_weights, write_json, write_weights

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Shape of the decoder. All widths except `head_dim` are multiples of 128."""

    vocab_size: int = 3072
    hidden: int = 256
    intermediate: int = 768
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10000.0
    eps: float = 1e-5
    max_positions: int = 2048


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.kv_heads, config.head_dim)
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, width, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x `[batch, tokens, hidden]` -> the same shape, and keys and values so far."""
        batch, tokens, _ = x.shape
        heads, kv_heads, dim = self.shape
        q = self.q_proj(x).view(batch, tokens, heads, dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, tokens, kv_heads, dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, kv_heads, dim).transpose(1, 2)
        q, k = _rotate(q, rope), _rotate(k, rope)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=tokens > 1, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, heads * dim)), (k, v)


class Mlp(nn.Module):
    """SwiGLU feed-forward layer."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x `[batch, tokens, hidden]` -> the same shape."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x `[batch, tokens, hidden]` -> the same shape, and keys and values so far."""
        mixed, present = self.self_attn(self.input_layernorm(x), rope, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class DemoModel(nn.Module):
    """A Llama decoder with tied embeddings; parameter names are those of `LlamaModel`."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(config.max_positions), config.rope_theta**-half)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        self._init_weights()

    def _init_weights(self) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02 if "embed" in name else weight.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.mul_((2 * self.config.layers) ** -0.5)

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """ids `[batch, tokens]` -> final states `[batch, tokens, hidden]`, and the cache."""
        start = past[0][0].shape[2] if past else 0
        stop = start + ids.shape[1]
        x = self.embed_tokens(ids)
        rope = (self.cos[start:stop], self.sin[start:stop])  # type: ignore[index]
        presents: Cache = []
        for number, layer in enumerate(self.layers):
            x, present = layer(x, rope, past[number] if past else None)
            presents.append(present)
        return self.norm(x), presents

    def logits(self, states: Tensor) -> Tensor:
        """states `[..., hidden]` -> scores `[..., vocab]`."""
        return functional.linear(states, self.embed_tokens.weight)


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the two halves of each head `[..., tokens, head_dim]` by position."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


@torch.inference_mode()
def generate(model: DemoModel, prompts: list[list[int]], stop: int, limit: int) -> list[list[int]]:
    """Return greedy continuations of prompts of equal length, without the `stop` id.

    At most `limit` tokens each. Prompts of different lengths need separate calls.
    """
    ids = torch.tensor(prompts, device=model.embed_tokens.weight.device)
    outputs: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    states, cache = model(ids)
    for _ in range(limit):
        chosen = model.logits(states[:, -1]).argmax(-1)
        keep = [row for row, token in enumerate(chosen.tolist()) if token != stop]
        for row in keep:
            outputs[running[row]].append(int(chosen[row]))
        running = [running[row] for row in keep]
        if not running:
            break
        if len(keep) < len(chosen):
            rows = torch.tensor(keep, device=ids.device)
            chosen, cache = chosen[rows], [(k[rows], v[rows]) for k, v in cache]
        states, cache = model(chosen[:, None], cache)
    return outputs


def save_checkpoint(model: DemoModel, folder: Path, bos: int, eos: int, pad: int) -> None:
    """Write `config.json`, `generation_config.json` and bf16 `model.safetensors` to `folder`."""
    config = model.config
    folder.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden,
            "intermediate_size": config.intermediate,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.eps,
            "rope_theta": config.rope_theta,
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            **ids,
        },
    )
    write_json(
        folder / "generation_config.json",
        {**ids, "do_sample": False, "max_new_tokens": 256},
    )
    write_weights(model, folder)


def load_checkpoint(folder: Path) -> DemoModel:
    """Read what `save_checkpoint` wrote, as float32 values of the bf16 weights."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = DemoConfig(
        vocab_size=raw["vocab_size"],
        hidden=raw["hidden_size"],
        intermediate=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        rope_theta=raw["rope_theta"],
        eps=raw["rms_norm_eps"],
        max_positions=raw["max_position_embeddings"],
    )
    model = DemoModel(config)
    read_weights(model, folder)
    return model.eval()
