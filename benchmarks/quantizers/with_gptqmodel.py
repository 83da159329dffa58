"""Run with gptqmodel's Python: MODEL WINDOWS OUT METHOD GROUP; METHOD is gptq, or order for desc_act."""

import json
import sys
from pathlib import Path

from gptqmodel import GPTQModel, QuantizeConfig

source, windows, out, method, group = sys.argv[1:]
texts = json.loads(Path(windows).read_text())
config = QuantizeConfig(bits=4, group_size=int(group), sym=True, desc_act=method == "order")
model = GPTQModel.load(source, config, device="cpu")
data = [{"input_ids": text, "attention_mask": [1] * len(text)} for text in texts]
model.quantize(data, batch_size=4)
model.save(out)
