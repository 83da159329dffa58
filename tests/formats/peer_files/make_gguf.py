"""Makes the GGUF files in `gguf/`: tiny random models, converted by llama.cpp, and transformers' logits.

llama.cpp 0c1e57098, as in the source distribution of llama-cpp-python 0.3.36 (`vendor/llama.cpp`),
which `make fixtures FIXTURES=llama.cpp` unpacks. The converter identifies published tokenizers by how they
encode a text; the one here has its true name, `gpt-2`.

llama.cpp's own logits of these files, all tensors and its cache in float32, were those of transformers
within 3e-6 of the greatest (Gemma's within 6e-4, StarCoder2's within 3e-4: its GELU is a table of float16),
but for Phi-3 with a window, which it ignores, and gpt-oss, where it rounds YaRN's ramp to whole columns:
Galley's were its own when they were computed so. It does not load norms of q and k in a small Command R.
"""

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import conversion
import gguf
import numpy as np
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.checkpoints import make_tokenizer
from tests.formats.peer_files.gguf_models import IDS, SHAPE, SHORT, VARIANTS

PIECES = ("gemma", "phi3", "mixtral")
"""Families with a tokenizer of SentencePiece's."""


def write_model(folder: Path, variant: str) -> Any:
    """Write a checkpoint in bf16. Returns the model with its values, in float32."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(**{**SHAPE, **VARIANTS[variant]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight", "sinks")):
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.to(torch.bfloat16).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    if variant == "gpt-oss":
        pack_experts(folder, model)
    if variant == "granite4":  # as published checkpoints have it
        edit(folder / "config.json", layer_types=["attention"] * 2)
    if variant == "cohere2":  # required by the converter; published checkpoints have it
        edit(folder / "config.json", rotary_pct=1.0)
    write_tokenizer(folder, variant)
    return model.eval()


def pack_experts(folder: Path, model: Any) -> None:
    """Replace the experts' matrices by random MXFP4 blocks."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    draw = torch.Generator().manual_seed(11)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=draw, dtype=torch.uint8)
        scales = torch.randint(122, 127, shape, generator=draw, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            model.get_parameter(name).data = values
    save_file(tensors, path, metadata={"format": "pt"})
    edit(folder / "config.json", quantization_config={"quant_method": "mxfp4"})


def edit(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def write_tokenizer(folder: Path, variant: str) -> None:
    """Write a tokenizer of bytes, or of SentencePiece's pieces."""
    if variant.startswith(PIECES):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the cat sat on the mat and then the dog sat too"] * 4),
            model_writer=model,
            model_type="bpe",
            vocab_size=280,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / "tokenizer.model").write_bytes(model.getvalue())
        return
    make_tokenizer(folder)
    if variant == "glm4":  # the converter requires its tokens
        for path in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
            text = path.read_text()
            text = text.replace("<|end|>", "<|endoftext|>").replace("<|im_start|>", "<|user|>")
            path.write_text(text)


def convert(folder: Path, out: Path) -> None:
    """Convert as convert_hf_to_gguf.py does with --outtype bf16."""
    hparams = conversion.ModelBase.load_hparams(folder, False)
    name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    kind = conversion.get_model_class(name)
    kind.get_vocab_base_pre = lambda *_: "gpt-2"
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.MOSTLY_BF16, out, model_name="random").write()


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1]) / "gguf"
    folder.mkdir()
    logits = {}
    for name in VARIANTS:
        with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
            model = write_model(Path(temporary), name)
            logits[name] = model(torch.tensor([IDS])).logits[0].numpy()
            if name == "phi3-longrope":
                logits[f"{name}-short"] = model(torch.tensor([IDS[:SHORT]])).logits[0].numpy()
            convert(Path(temporary), folder / f"{name}.gguf")
    np.savez_compressed(folder / "logits.npz", allow_pickle=False, **logits)


if __name__ == "__main__":
    main()
