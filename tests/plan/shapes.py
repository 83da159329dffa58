"""Models and a machine with known plans, and the planning command."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from galley.cli.main import app
from galley.plan.hardware import Machine
from galley.plan.steps import Shares

LLAMA_7B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LLAMA_70B = LLAMA_7B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
MIXTRAL = LLAMA_7B | {
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
MISTRAL = LLAMA_7B | {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 1024}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
MACHINE = Machine(
    name="m",
    what="",
    kind="gpu",
    memory=80,
    bandwidth=2000,
    tflops={"bfloat16": 300, "int8": 600},
    price=2.0,
)
EXACT = Shares(
    bandwidth=1.0,
    arithmetic=((1, 1.0),),
    attention_bandwidth=1.0,
    attention_arithmetic=1.0,
    step_seconds=0.0,
    reserve_bytes=0,
)


def planned(tmp_path: Path, *arguments: str, config: dict[str, Any] = MIXTRAL) -> Any:
    """Return the output of the command."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return CliRunner().invoke(app, ["plan", str(path), *arguments])
