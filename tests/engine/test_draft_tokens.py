"""Draft tokens change the number of steps that a text takes, and nothing else."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens

import msgspec
import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.sequence import Sequence
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import BLOCK_TOKENS, Output, blocks_for
from tests.conftest import CheckpointMaker
from tests.engine.drafts import each

PROMPTS = [list(range(5, 5 + n)) for n in (3, 17, 40)]
PARAMS = SamplingParams(temperature=0.9, seed=4, max_tokens=40, ignore_eos=True)
Texts = dict[str, list[Output]]


def run(engine: Engine, params: SamplingParams) -> tuple[Texts, int]:
    """Return each request's Outputs, and the steps it took."""
    texts: Texts = {}
    for i, prompt in enumerate(PROMPTS):
        engine.add(expand(prompt, params, engine.info, request_id=f"r{i}")[0])
    steps = 0
    while engine.has_work:
        steps += 1
        for output in engine.step():
            texts.setdefault(output.request_id, []).append(output)
        engine.check_blocks()
    assert engine.stats.kv_used_blocks == 0
    return texts, steps


def joined(texts: Texts) -> dict[str, tuple[object, ...]]:
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


def right(known: dict[str, list[int]], count: int) -> Callable[[Sequence], Tokens[int]]:
    """Propose the next tokens as they came without draft tokens."""
    return lambda s: known[s.id][s.generated : s.generated + count]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.0},
        {"logprobs": 2, "scores": True},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "penalty_window": 5},
        {"min_tokens": 9, "stop_token_ids": tuple(range(100, 160))},
        {"prompt_logprobs": 1},
    ],
)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_text_is_the_same_with_and_without_draft_tokens(
    changes: dict[str, object], prefix_cache: bool, checkpoint: CheckpointMaker
) -> None:
    params = msgspec.structs.replace(PARAMS, **changes)
    settings = EngineSettings(
        threads=1, speculation="off", kv_cache_tokens=512, prefix_cache=prefix_cache
    )

    def engine() -> Engine:
        return load_engine(settings, checkpoint("llama"))

    texts, steps = run(engine(), params)
    expected = joined(texts)
    known = {name: text[0] for name, text in expected.items()}
    assert isinstance(known, dict)
    for propose, fewer in (
        (right(known, 5), True),  # type: ignore[arg-type]
        (lambda s: [1, 2, 3, 4], False),
        (lambda s: [*right(known, 2)(s), 7, 7], True),  # type: ignore[arg-type]
    ):
        speculation = engine()
        speculation._scheduler.propose_drafts = each(propose)
        got, taken = run(speculation, params)
        assert joined(got) == expected
        assert taken < steps / 2 if fewer else taken == steps


def test_draft_tokens_with_preemptions(checkpoint: CheckpointMaker) -> None:
    settings = EngineSettings(threads=1, speculation="off", kv_cache_tokens=512)
    texts, _ = run(load_engine(settings, checkpoint("llama")), PARAMS)
    known = {name: text[0] for name, text in joined(texts).items()}
    tight = load_engine(
        EngineSettings(
            threads=1, speculation="off", kv_cache_tokens=128, max_batch_tokens=24, max_running=3
        ),
        checkpoint("llama"),
    )
    tight._scheduler.propose_drafts = each(right(known, 6))  # type: ignore[arg-type]
    got, _ = run(tight, PARAMS)
    assert tight.stats.preemptions > 0
    assert joined(got) == joined(texts)


def test_no_sequence_is_preempted_for_draft_tokens(checkpoint: CheckpointMaker) -> None:
    """The cache holds the texts and not one block more."""
    blocks = sum(blocks_for(len(prompt) + 40) for prompt in PROMPTS)
    settings = EngineSettings(
        threads=1, speculation="off", kv_cache_tokens=blocks * BLOCK_TOKENS, prefix_cache=False
    )
    texts, steps = run(load_engine(settings, checkpoint("llama")), PARAMS)
    speculation = load_engine(settings, checkpoint("llama"))
    speculation._scheduler.propose_drafts = each(lambda s: [3] * 40)
    got, taken = run(speculation, PARAMS)
    assert speculation.stats.preemptions == 0
    assert joined(got) == joined(texts)
    assert taken == steps


def test_a_task_limits_the_draft_tokens_that_it_verifies(checkpoint: CheckpointMaker) -> None:
    """Beam searches verify no draft tokens; a text's last token needs none after it."""
    engine = load_engine(
        EngineSettings(threads=1, speculation="off", kv_cache_tokens=512), checkpoint("llama")
    )
    proposed: list[int] = []

    def propose(sequence: Sequence) -> list[int]:
        proposed.append(sequence.generated)
        return [5] * 99

    engine._scheduler.propose_drafts = each(propose)
    greedy = msgspec.structs.replace(PARAMS, temperature=0.0, max_tokens=6)
    run(engine, msgspec.structs.replace(greedy, num_beams=3))
    assert proposed == []
    run(engine, greedy)
    assert max(proposed) == 4
