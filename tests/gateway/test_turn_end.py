"""The probability that a message is over, against transformers on the same weights."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from galley.demo import MODEL_DIR
from galley.formats.source import BUNDLED
from galley.gateway.caller import Caller
from galley.gateway.registry import open_models
from galley.gateway.turn_end import turn_end
from galley.settings.config import Settings
from galley.tools.conversation import Conversation

SYSTEM = {"role": "system", "content": "You help customers of a telephone company."}
SAID = [
    "My invoice is wrong. Can you help me?",
    "My invoice is wrong. Can you",
    "Hello, my name is",
    "Thank you.",
]


def conversation(text: str) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": text}]


async def probabilities() -> list[float]:
    settings = Settings(model=BUNDLED, threads=1, kv_cache_tokens=4096, dtype="float32")
    async with open_models(settings) as models:
        served = await models.find(BUNDLED, "generate")
        return [
            await turn_end(served, "/", Caller(str(n)), Conversation(messages=conversation(text)))
            for n, text in enumerate(SAID)
        ]


def test_it_is_the_probability_of_the_token_that_ends_the_message() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    found = asyncio.run(probabilities())
    for text, probability in zip(SAID, found, strict=True):
        ids = [
            tokenizer.apply_chat_template(
                conversation(text), tokenize=True, return_dict=False, **how
            )
            for how in ({"continue_final_message": True}, {})
        ]
        said, closed = ids
        with torch.inference_mode():
            after = model(torch.tensor([said])).logits[0, -1].softmax(-1)
        wanted = float(after[closed[len(said)]])
        twentieth = float(after.topk(20).values[-1])
        assert probability == pytest.approx(max(wanted, twentieth), rel=0.02)
    complete, cut, *_ = found
    assert complete > 10 * cut
