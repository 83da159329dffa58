"""The differentiable program against transformers: logits and gradients of every family."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from galley.engine.read_model import read_model
from galley.settings.engine import EngineSettings
from galley.train.forward import logits_of
from galley.train.student import read_parameters
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker

CHOSEN = (
    *("llama-mha-tied", "llama-head-dim-bias", "qwen2-window", "qwen3", "gemma2", "phi3-longrope"),
    *("granite", "olmo2", "smollm3", "glm4", "cohere", "starcoder2-odd", "gpt_neox"),
)
"""All ops with all of their options."""

HEADS = {"lm_head.weight": "embed_out.weight"}
"""transformers' name of GPT-NeoX's head -> that in its checkpoints."""


@pytest.mark.parametrize("variant", CHOSEN)
def test_logits_and_gradients_are_those_of_transformers(
    checkpoint: CheckpointMaker, variant: str
) -> None:
    folder = checkpoint(variant)
    model = read_model(EngineSettings(dtype="float32", threads=1), folder)
    parameters, _ = read_parameters(model)
    for values in parameters.values():
        values.requires_grad_()
    texts = [random_ids(1, 50), random_ids(2, 37)]
    ids = torch.zeros((2, 50), dtype=torch.int64)
    wanted = torch.zeros((2, 50), dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        wanted[row, : len(text)] = True
    logits = logits_of(model.program, parameters, ids, wanted)
    logits.logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]

    truth = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    known = torch.cat([truth(torch.tensor([text])).logits[0] for text in texts])
    known.logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(logits.detach(), known.detach(), rtol=1e-4, atol=2e-4)
    compared = 0
    for own, values in truth.named_parameters():
        name = own if own in parameters else HEADS.get(own, own)
        if name in parameters:
            mine = parameters[name].grad
            assert mine is not None
            scale = float(values.grad.abs().max())
            np.testing.assert_allclose(
                mine, values.grad, rtol=1e-3, atol=1e-3 * scale, err_msg=name
            )
            compared += 1
    assert compared == len(parameters)
