"""Makes `peft/`: adapters of a tiny random Llama as PEFT saves them, and the model's logits with each.

Every field of PEFT's configuration is in `adapter_config.json`, so additions in a release show when the
files are regenerated (`make fixtures`).
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.formats.peer_files.peft_adapters import ADAPTERS, IDS, REFUSED

VOCAB = 48


def base() -> Any:
    """Return the model with the same weights each time."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def train(model: Any) -> None:
    """Fill the parameters that PEFT trains with random factors, as after training."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                noise = torch.randn(parameter.shape, generator=draw)
                parameter.copy_((0.2 * noise).to(torch.bfloat16))


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1]) / "peft"
    base().save_pretrained(folder / "base")
    logits = {}
    for name, fields in {**ADAPTERS, **REFUSED}.items():
        model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **fields))
        train(model.eval())
        with torch.no_grad():
            logits[name] = model(torch.tensor([IDS])).logits[0].numpy()
        model.save_pretrained(folder / name)
        for extra in (folder / name).glob("README.md"):
            extra.unlink()
    kept = {name: logits[name] for name in ADAPTERS}
    np.savez_compressed(folder / "logits.npz", allow_pickle=False, **kept)


if __name__ == "__main__":
    main()
