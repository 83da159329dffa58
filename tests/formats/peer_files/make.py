"""Makes the checkpoints of this folder: a tiny random Llama, quantised by llm-compressor in several ways.

    pip install torch==2.13.0 llmcompressor==0.14.0.1
    python tests/formats/peer_files/make.py FOLDER

The tool is not installed with the tests: what it wrote is kept beside this file.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.awq import AWQModifier
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB, CONTEXT, TEXTS, GROUP = 32, 32, 16, 32
HEAD = ["lm_head"]


def write_base(folder: Path) -> None:
    """A model of one layer in bf16, and the tokenizer that the tool asks for."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def texts() -> Any:
    """Random tokens to calibrate with."""
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCAB, (TEXTS, CONTEXT), generator=draw).tolist()
    return Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * CONTEXT] * TEXTS})


def integers(bits: int, *, grouped: bool = False, **more: Any) -> Any:
    """Weights of a scale for each group of columns, or each row."""
    size = {"strategy": "group", "group_size": GROUP} if grouped else {"strategy": "channel"}
    return QuantizationArgs(num_bits=bits, type="int", **size, **more)


def inputs(kind: str, *, symmetric: bool = True) -> Any:
    """Inputs with a static scale."""
    return QuantizationArgs(num_bits=8, type=kind, strategy="tensor", symmetric=symmetric)


def groups(*schemes: tuple[str, Any, Any]) -> Any:
    """Targets, weights, inputs."""
    return {
        f"group_{i}": QuantizationScheme(
            targets=[target], weights=weights, input_activations=activations
        )
        for i, (target, weights, activations) in enumerate(schemes)
    }


def recipes() -> dict[str, Any]:
    """Name of a checkpoint -> how it is quantised."""
    four = integers(4, grouped=True, symmetric=False)
    ordered = integers(4, grouped=True, symmetric=False, actorder="weight")
    floats = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    mixed = groups(
        ("re:.*self_attn.*", integers(4, grouped=True), None),
        ("re:.*down_proj", integers(8), None),
        ("re:.*up_proj", floats, None),
    )
    return {
        "gptq-w4a16": GPTQModifier(config_groups=groups(("Linear", ordered, None)), ignore=HEAD),
        "awq-w4a16": AWQModifier(config_groups=groups(("Linear", four, None)), ignore=HEAD),
        "w8a8-static": QuantizationModifier(
            config_groups=groups(("Linear", integers(8), inputs("int", symmetric=False))),
            ignore=HEAD,
        ),
        "fp8-kv8": QuantizationModifier(
            targets=["Linear"], scheme="FP8", ignore=HEAD, kv_cache_scheme=inputs("float")
        ),
        "mixed": QuantizationModifier(config_groups=mixed, ignore=[*HEAD, "re:.*gate_proj"]),
    }


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1])
    base = folder / "base"
    write_base(base)
    if not torch.accelerator.is_available():  # AWQ pins its cache on any machine
        torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    for name, recipe in recipes().items():
        model = oneshot(
            model=LlamaForCausalLM.from_pretrained(base, dtype=torch.bfloat16),
            tokenizer=PreTrainedTokenizerFast.from_pretrained(base),
            dataset=texts(),
            recipe=recipe,
            num_calibration_samples=TEXTS,
            max_seq_length=CONTEXT,
            shuffle_calibration_samples=False,
        )
        model.save_pretrained(folder / name, save_compressed=True)


if __name__ == "__main__":
    main()
