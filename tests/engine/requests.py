"""Requests of all kinds, drawn by hypothesis, and the texts that callers see."""

from typing import Any

from hypothesis import strategies as st

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.service.requests import expand
from galley.types import EngineRequest, Output

PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
WISHES = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 48), "seed": st.integers(0, 3)},
    optional={
        "temperature": st.sampled_from([0.0, 0.9]),
        "logprobs": st.integers(0, 2),
        "scores": st.just(True),
        "prompt_logprobs": st.just(1),
        "num_beams": st.just(2),
        "min_tokens": st.just(1),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.just((7, 11, 60)),
        "top_p": st.just(0.8),
        "penalties": st.booleans(),
        # A text over few tokens repeats itself, so lookups succeed.
        "few": st.booleans(),
        "speculation": st.sampled_from(["auto", "off"]),
        "salt": st.sampled_from(["", "other"]),
    },
)
PROMPTS = st.lists(st.integers(5, 9), min_size=1, max_size=40)


def request(i: int, prompt: list[int], wish: dict[str, Any], engine: Engine) -> EngineRequest:
    params = {name: value for name, value in wish.items() if name not in ("penalties", "few")}
    salt = params.pop("salt", "")
    if params.get("num_beams"):
        params = {"num_beams": 2, "temperature": 0.0, "max_tokens": params["max_tokens"]}
    else:
        params |= PENALTIES if wish.get("penalties") else {}
        params |= {"logit_bias": dict.fromkeys((7, 20, 30), 30.0)} if wish.get("few") else {}
    sampling = SamplingParams(**{"temperature": 0.7, **params})
    [made] = expand(prompt, sampling, engine.info, request_id=f"r{i}", cache_salt=salt)
    return made


def run(engine: Engine, requests: list[EngineRequest]) -> dict[str, list[Output]]:
    texts: dict[str, list[Output]] = {}
    for made in requests:
        engine.add(made)
    while engine.has_work:
        for output in engine.step():
            texts.setdefault(output.request_id, []).append(output)
        engine.check_blocks()
    assert engine.stats.kv_used_blocks == 0
    return texts


def seen(texts: dict[str, list[Output]]) -> dict[str, tuple[object, ...]]:
    """Return all that callers see of each text, regardless of the number of Outputs."""
    return {
        name: (
            [token for output in outputs for token in output.tokens],
            [entry for output in outputs for entry in output.generated.logprobs or ()],
            [score for output in outputs for score in output.generated.scores or ()],
            outputs[0].generated.prompt_logprobs,
            outputs[-1].finish_reason,
        )
        for name, outputs in texts.items()
    }
