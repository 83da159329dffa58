"""Run with NNCF's Python: MODEL WINDOWS OUT METHOD GROUP; METHOD is awq, scale, or both joined by +.

The output is plain float32 matrices holding the dequantized values, with float16 scales applied.
"""

import json
import sys
from pathlib import Path

import nncf
import torch
from nncf.torch.function_hook import get_hook_storage
from nncf.torch.quantization.layers import INT4SymmetricWeightsDecompressor
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

source, windows, out, method, group = sys.argv[1:]
texts = [{"input_ids": torch.tensor([text])} for text in json.loads(Path(windows).read_text())]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
model.config.use_cache = False
made = nncf.compress_weights(
    model,
    mode=nncf.CompressWeightsMode.INT4_SYM,
    ratio=1.0,
    group_size=int(group),
    dataset=nncf.Dataset(texts),
    subset_size=len(texts),
    awq="awq" in method,
    scale_estimation="scale" in method,
    backup_mode=nncf.BackupMode.NONE,
)
tensors = {k: v.clone() for k, v in made.state_dict().items() if not k.startswith("__nncf")}
hooks = dict(get_hook_storage(made).named_modules())
assert all(
    isinstance(hook, INT4SymmetricWeightsDecompressor)
    for name, hook in hooks.items()
    if name[-2:] == ".0"
), (
    "AWQ scales inputs that no preceding layer produces: the factors cannot be merged into the matrices"
)
for name in tensors:
    hook = hooks.get(f"post_hooks.{name.replace('.', ':')}__0.0")
    if hook is not None:
        tensors[name] = hook(tensors[name]).float().contiguous()
tensors.pop("lm_head.weight", None) if model.config.tie_word_embeddings else None
Path(out).mkdir()
save_file(tensors, Path(out) / "model.safetensors", metadata={"format": "pt"})
for file in Path(source).glob("*.json"):
    if "safetensors" not in file.name:
        (Path(out) / file.name).write_bytes(file.read_bytes())
