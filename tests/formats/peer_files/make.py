"""Makes checkpoints of this folder: a tiny random Llama, quantized by llm-compressor in several ways.

    pip install torch==2.13.0 llmcompressor==0.14.0.1
    python -m tests.formats.peer_files.make FOLDER

The tool is not installed with the tests: its output is kept next to this file.
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
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.formats.peer_files.base import CONTEXT, GROUP, TEXTS, random_texts, write_base

HEAD = ["lm_head"]


def texts() -> Any:
    """Return the tokens in the tool's format."""
    mask = [[1] * CONTEXT] * TEXTS
    return Dataset.from_dict({"input_ids": random_texts(), "attention_mask": mask})


def integers(bits: int, *, grouped: bool = False, **more: Any) -> Any:
    """Return the scheme of weights with a scale for each group of columns, or each row."""
    size = {"strategy": "group", "group_size": GROUP} if grouped else {"strategy": "channel"}
    return QuantizationArgs(num_bits=bits, type="int", **size, **more)


def inputs(kind: str, *, symmetric: bool = True) -> Any:
    """Return the scheme of inputs with a static scale."""
    return QuantizationArgs(num_bits=8, type=kind, strategy="tensor", symmetric=symmetric)


def groups(*schemes: tuple[str, Any, Any]) -> Any:
    """Return ``config_groups`` of targets, weights and inputs."""
    return {
        f"group_{i}": QuantizationScheme(
            targets=[target], weights=weights, input_activations=activations
        )
        for i, (target, weights, activations) in enumerate(schemes)
    }


def recipes() -> dict[str, Any]:
    """Return name of a checkpoint -> how it is quantized."""
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
        "w8a8-static-symmetric": QuantizationModifier(
            config_groups=groups(("Linear", integers(8), inputs("int"))), ignore=HEAD
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
    if not torch.accelerator.is_available():  # AWQ keeps its cache in pinned memory on any machine
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
