"""The probability that a message is over, against transformers on the same weights."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from galley.demo import MODEL_DIR
from galley.formats.source import BUNDLED
from galley.gateway.caller import Caller
from galley.gateway.registry import open_models
from galley.gateway.turn_end import UnmarkedEnd, turn_end
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


def probabilities(model: str, said: list[str]) -> list[float | str]:
    """Return each text's probability, or the error's message."""

    async def run() -> list[float | str]:
        settings = Settings(model=model, threads=1, kv_cache_tokens=4096, dtype="float32")
        async with open_models(settings) as models:
            served = await models.find(model.rsplit("/", 1)[-1], "generate")
            found: list[float | str] = []
            for n, text in enumerate(said):
                messages = Conversation(messages=conversation(text))
                try:
                    found.append(await turn_end(served, "/", Caller(str(n)), messages))
                except UnmarkedEnd as error:
                    found.append(str(error))
            return found

    return asyncio.run(run())


def with_template(folder: Path, template: str) -> str:
    """Return the bundled model with another chat template."""
    for file in MODEL_DIR.iterdir():
        if file.name != "tokenizer_config.json":
            shutil.copy(file, folder)
    config = json.loads((MODEL_DIR / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_it_is_the_probability_of_the_token_that_ends_the_message() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    found = probabilities(BUNDLED, SAID)
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
    assert isinstance(complete, float)
    assert isinstance(cut, float)
    assert complete > 10 * cut


def test_an_end_may_be_joined_to_the_last_word(tmp_path: Path) -> None:
    """ "you" and the template's "r" are one token, so the message ends if that one follows "Can"."""
    model = with_template(tmp_path, "{% for m in messages %}{{ m.content }}r{% endfor %}")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    system = SYSTEM["content"] + "r"
    before, open_ended, closed = (
        tokenizer.encode(system + text, add_special_tokens=False)
        for text in ("Can", "Can you", "Can your")
    )
    assert (len(open_ended), len(closed)) == (len(before) + 1, len(before) + 1)
    reference = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    with torch.inference_mode():
        after = reference(torch.tensor([before])).logits[0, -1].softmax(-1)
    least = float(after.topk(20).values[-1])
    ends, goes_on = (max(least, float(after[one[-1]])) for one in (closed, open_ended))
    [found] = probabilities(model, ["Can you"])
    assert found == pytest.approx(ends / (ends + goes_on), rel=0.02)


def test_a_template_may_write_nothing_after_a_message(tmp_path: Path) -> None:
    model = with_template(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    [found] = probabilities(model, ["Can you"])
    assert found == "the model's chat template does not end a message after its text"
