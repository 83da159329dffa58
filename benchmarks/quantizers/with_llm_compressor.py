"""Run with llm-compressor's Python: MODEL WINDOWS OUT METHOD GROUP; METHOD is gptq or awq."""

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.awq import AWQModifier
from llmcompressor.modifiers.quantization import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

source, windows, out, method, group = sys.argv[1:]
texts = json.loads(Path(windows).read_text())
torch.set_num_threads(1)
if not torch.accelerator.is_available():
    # AWQ keeps its cache in pinned memory even so.
    setattr(torch.Tensor, "pin_memory", lambda self, *_: self)  # noqa: B010
weights = QuantizationArgs(
    num_bits=4, type="int", strategy="group", group_size=int(group), symmetric=True
)
scheme = {"all": QuantizationScheme(targets=["Linear"], weights=weights)}
modifier = {"gptq": GPTQModifier, "awq": AWQModifier}[method]
model = oneshot(
    model=AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
    tokenizer=AutoTokenizer.from_pretrained(source),
    dataset=Dataset.from_dict(
        {"input_ids": texts, "attention_mask": [[1] * len(text) for text in texts]}
    ),
    recipe=modifier(config_groups=scheme, ignore=["lm_head"]),
    num_calibration_samples=len(texts),
    max_seq_length=max(map(len, texts)),
    shuffle_calibration_samples=False,
    batch_size=4,
)
model.save_pretrained(out, save_compressed=True)
