"""Run with NNCF's python: MODEL WINDOWS OUT METHOD GROUP, METHOD some of awq and scale, joined by +.

What it writes are plain float32 matrices with the values of the integers; AWQ's factors of inputs are in them.
"""

import json
import sys
from pathlib import Path

import nncf
import torch
from nncf.torch.function_hook import get_hook_storage
from transformers import AutoModelForCausalLM

source, windows, out, method, group = sys.argv[1:]
texts = json.loads(Path(windows).read_text())
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
model.config.use_cache = False
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
data = [{"input_ids": torch.tensor([text])} for text in texts]
made = nncf.compress_weights(
    model,
    mode=nncf.CompressWeightsMode.INT4_SYM,
    ratio=1.0,
    group_size=int(group),
    dataset=nncf.Dataset(data),
    subset_size=len(data),
    awq="awq" in method,
    scale_estimation="scale" in method,
    backup_mode=nncf.BackupMode.NONE,
)
print(made)
for name, module in get_hook_storage(made).named_modules():
    print(
        name,
        type(module).__name__,
        [
            (n, tuple(t.shape), t.dtype)
            for n, t in [
                *module.named_buffers(recurse=False),
                *module.named_parameters(recurse=False),
            ]
        ],
    )
torch.save({n: t for n, t in made.state_dict().items()}, Path(out).with_suffix(".pt"))
