"""Random weights under a grammar: the output follows it, and other requests are unaffected."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from galley import LLM, RequestError, SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.grammar.check import check
from galley.grammar.vocabulary import load_vocabulary
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Grammar, Output
from tests.checkpoints import make_checkpoint
from tests.conftest import CheckpointMaker
from tests.engine.drafts import each, eager
from tests.grammar.schemas import COUNT, NAME, SCHEMAS, record
from tests.payloads import generated
from tests.text import trained


@pytest.fixture(scope="module")
def llm(checkpoint: CheckpointMaker) -> Iterator[LLM]:
    with LLM(checkpoint("llama"), kv_cache_tokens=16384, threads=1) as loaded:
        yield loaded


def constrained(kind: Any, source: str, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 400, "grammar": Grammar(kind, source), **changes})


def schema_params(**changes: Any) -> list[SamplingParams]:
    """Return one request for each schema, with separate seeds."""
    return [
        constrained("json_schema", json.dumps(schema), seed=seed, **changes)
        for seed, schema in enumerate(SCHEMAS)
    ]


def valid(schema: dict[str, Any], text: str) -> bool:
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return validator.is_valid(json.loads(text))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_json_follows_its_schema(llm: LLM, temperature: float) -> None:
    params = schema_params(temperature=temperature)
    answers = llm.generate([[5, 6, 7 + i] for i in range(len(params))], params)
    for schema, answer in zip(SCHEMAS, answers, strict=True):
        assert answer.finish_reason == "stop", (schema, answer.text)
        assert valid(schema, answer.text), (schema, answer.text)


def test_any_object(llm: LLM) -> None:
    params = [
        constrained("json_schema", '{"type":"object"}', seed=seed, temperature=1.0)
        for seed in range(20)
    ]
    answers = llm.generate([[9, 8]] * 20, params)
    whole = [answer for answer in answers if answer.finish_reason == "stop"]
    assert whole
    assert all(isinstance(json.loads(answer.text), dict) for answer in whole)


@pytest.mark.parametrize(
    "expression",
    ["[a-c]{3,5}[0-9]", "(yes|no)( maybe)?", "é+[^x]{2}", r"\d{4}-\d{2}/\"q\"", "(a*)*", "x|xy+z"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_regular_expression_matches_the_whole_text(
    llm: LLM, expression: str, temperature: float
) -> None:
    params = [constrained("regex", expression, temperature=temperature, seed=s) for s in range(4)]
    for answer in llm.generate([[5, 40, 41 + i] for i in range(4)], params):
        assert answer.finish_reason in ("stop", "length")
        assert answer.finish_reason == "length" or re.fullmatch(expression, answer.text, re.DOTALL)
        assert answer.finish_reason == "stop" or expression in ("(a*)*", "x|xy+z", "é+[^x]{2}")


def test_choices(llm: LLM) -> None:
    choices = ["high", "highest", 'l"ow\n', "ünï", " spaced"]
    params = [
        constrained("choice", json.dumps(choices), temperature=2.0, seed=seed) for seed in range(30)
    ]
    texts = {answer.text for answer in llm.generate([[5, 6]] * 30, params)}
    assert texts <= set(choices)
    assert len(texts) > 1


@pytest.mark.parametrize(
    "source",
    [
        'start: "<" WORD ("," WORD)~0..2 ">"\nWORD: /[a-z]{1,3}/',
        'root ::= "<" word ("," word){0,2} ">"\nword ::= [a-z]{1,3}\n',
    ],
    ids=["lark", "gbnf"],
)
def test_grammars(llm: LLM, source: str) -> None:
    params = [constrained("grammar", source, seed=seed) for seed in range(5)]
    for answer in llm.generate([[5, 6, 7]] * 5, params):
        assert re.fullmatch(r"<[a-z]{1,3}(,[a-z]{1,3}){0,2}>", answer.text)


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    """Spaces as letters, and characters as single bytes."""
    make_checkpoint(tmp_path, vocab_size=700, eos_token_id=2, generation={"eos_token_id": 2})
    trained.sentencepiece(tmp_path)
    with LLM(tmp_path, kv_cache_tokens=8192, threads=1) as loaded:
        params = schema_params(temperature=1.0)
        answers = loaded.generate([[5, 6, 7]] * len(params), params)
        for schema, answer in zip(SCHEMAS, answers, strict=True):
            assert answer.finish_reason == "stop", (schema, answer.text)
            assert valid(schema, answer.text), (schema, answer.text)
        spaced = constrained("regex", " é[a-c] ", temperature=1.0)
        assert re.fullmatch(" é[a-c] ", loaded.generate([[5, 6]], spaced)[0].text)


@pytest.mark.parametrize("draft_tokens", ["off", "auto"])
@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        ({"type": "integer"}, r"-?\d{1,19}"),
        ({"type": "number"}, r"-?\d{1,19}(\.\d{1,17})?([eE][+-]?\d{1,3})?"),
        ({"type": "number", "minimum": 0, "maximum": 1}, r"[01](\.\d{1,17})?"),
        ({}, r"-?\d{1,19}(\.\d{1,17})?([eE][+-]?\d{1,3})?"),
    ],
    ids=["integer", "number", "fraction", "any"],
)
def test_a_number_ends_although_the_model_prefers_digits(
    schema: dict[str, Any], shape: str, draft_tokens: Any, llm: LLM
) -> None:
    """In arrays, and where more digits are required or are part of a text."""
    assert llm.tokenizer is not None
    digits = dict.fromkeys(llm.tokenizer.encode_plain("0123456789"), 60.0)
    values = {"type": "array", "items": schema, "minItems": 2, "maxItems": 2}
    params = [
        constrained(
            "json_schema",
            json.dumps(values),
            seed=seed,
            temperature=1.0,
            logit_bias=digits,
            speculation=draft_tokens,
        )
        for seed in range(8)
    ]
    for answer in llm.generate([[5, 6, 7 + i] for i in range(8)], params):
        assert answer.finish_reason == "stop", answer.text
        assert re.fullmatch(rf"\[\s*{shape}\s*,\s*{shape}\s*\]", answer.text), answer.text


def test_required_digits_are_not_a_runaway_number(llm: LLM) -> None:
    for schema, digits in (
        ({"const": 10**30}, 31),
        ({"type": "string", "pattern": "^[0-9]{40}$"}, 40),
        ({"type": "string", "minLength": 30, "maxLength": 30, "pattern": "^[0-9]*$"}, 30),
    ):
        [answer] = llm.generate([[5, 6]], constrained("json_schema", json.dumps(schema), seed=1))
        assert len(re.findall("[0-9]", answer.text)) == digits
    [answer] = llm.generate([[5, 6]], constrained("regex", "[0-9]{50}", seed=1))
    assert len(answer.text) == 50


def test_a_text_cut_at_max_tokens_says_so(llm: LLM) -> None:
    params = constrained("json_schema", json.dumps(record(a=COUNT, b=NAME)), max_tokens=4)
    [answer] = llm.generate([[5, 6]], params)
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 4
    assert answer.text.startswith("{")


def test_the_last_token_that_is_allowed_may_complete_the_text(llm: LLM) -> None:
    [answer] = llm.generate([[5, 6]], constrained("regex", "a{3}", temperature=0.0))
    [same] = llm.generate(
        [[5, 6]], constrained("regex", "a{3}", temperature=0.0, max_tokens=len(answer.token_ids))
    )
    assert (same.text, same.finish_reason) == ("aaa", "stop")


def test_white_space_between_tokens_is_bounded(llm: LLM) -> None:
    """A model that would otherwise write only white space: each such token has the highest bias."""
    white = [llm.tokenizer.encode(text)[0] for text in (" ", "\n", "\t")]
    params = constrained(
        "json_schema", json.dumps(record(a=COUNT)), logit_bias=dict.fromkeys(white, 100.0)
    )
    [answer] = llm.generate([[5, 6]], params)
    assert answer.finish_reason == "stop"
    assert valid(record(a=COUNT), answer.text)
    assert len(re.findall(r"\s", answer.text)) > 20


def test_an_unsupported_keyword_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="'not'") as caught:
        llm.generate([[5, 6]], constrained("json_schema", '{"not": {}}'))
    assert caught.value.param == "grammar"


def test_a_grammar_that_fails_late_ends_the_request_with_an_error(llm: LLM) -> None:
    params = [
        constrained("regex", "([ab]{0,500}a[ab]{0,500}){200}", temperature=9.0, seed=seed)
        for seed in range(4)
    ]
    for answer in llm.generate([[5, 6]] * 4, params):
        assert answer.finish_reason == "error"
        assert "grammar cannot be applied" in (answer.error or "")
        assert re.fullmatch("[ab]+", answer.text)


def requests_of(
    engine: Engine, tokenizer_folder: Any, params: Sequence[SamplingParams]
) -> list[EngineRequest]:
    """Return prompts of several lengths, with checked grammars."""
    vocabulary = load_vocabulary(tokenizer_folder)
    requests = []
    for i, one in enumerate(params):
        if one.grammar is not None:
            one = SamplingParams(
                temperature=one.temperature,
                seed=one.seed,
                max_tokens=one.max_tokens,
                logprobs=one.logprobs,
                scores=one.scores,
                grammar=check(one.grammar, vocabulary, "x"),
            )
        prompt = [3 + (7 * i + j) % 200 for j in range(3 + 11 * (i % 4))]
        requests += expand(prompt, one, engine.info, request_id=f"r{i}")
    return requests


def run(engine: Engine, requests: Sequence[EngineRequest]) -> dict[str, tuple[object, ...]]:
    """Return all that callers see of each text."""
    outputs: dict[str, list[Output]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.check_blocks()
    assert engine.stats.kv_used_blocks == 0
    return {
        name: (
            [token for output in all_ for token in output.tokens],
            [entry for output in all_ for entry in output.generated.logprobs or ()],
            [score for output in all_ for score in output.generated.scores or ()],
            all_[-1].finish_reason,
            all_[-1].error,
        )
        for name, all_ in outputs.items()
    }


MIXED = [
    params
    for seed, schema in enumerate(SCHEMAS[20:30])
    for params in (
        constrained(
            "json_schema",
            json.dumps(schema),
            seed=seed,
            temperature=[0.0, 1.0][seed % 2],
            max_tokens=120,
            logprobs=1,
            scores=True,
        ),
        SamplingParams(temperature=0.9, seed=seed, max_tokens=25, ignore_eos=True),
    )
]


@pytest.fixture(scope="module")
def alone(checkpoint: CheckpointMaker) -> dict[str, tuple[object, ...]]:
    """Return the result of each request when it has the engine to itself."""
    folder = checkpoint("llama")
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=4096), folder)
    texts: dict[str, tuple[object, ...]] = {}
    for request in requests_of(engine, folder, MIXED):
        texts |= run(engine, [request])
    engine.close()
    return texts


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({"kv_cache_tokens": 4096}, False),
        ({"kv_cache_tokens": 4096, "max_batch_tokens": 16, "max_running": 4}, False),
        ({"kv_cache_tokens": 256, "max_batch_tokens": 24, "max_running": 8}, True),
        ({"kv_cache_tokens": 4096, "executor": "reference"}, False),
    ],
    ids=["together", "chunked", "preempted", "reference"],
)
def test_neither_a_text_nor_its_neighbors_depend_on_the_batch(
    settings: dict[str, Any],
    preempts: bool,
    alone: dict[str, tuple[object, ...]],
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("llama")
    engine = load_engine(EngineSettings(threads=1, **settings), folder)
    texts = run(engine, requests_of(engine, folder, MIXED))
    engine.close()
    assert (engine.stats.preemptions > 0) == preempts
    if settings.get("executor") == "reference":  # other rounding, other texts
        tokenizer = Tokenizer.load(folder)
        for i, schema in enumerate(SCHEMAS[20:30]):
            tokens, *_, reason, _ = texts[f"r{2 * i}-0"]
            assert isinstance(tokens, list)
            stream = tokenizer.decode([token for token in tokens if token])
            assert reason == "stop"
            assert valid(schema, stream)
    else:
        assert texts == alone


@pytest.mark.parametrize("wrong", [False, True])
def test_draft_tokens_change_nothing(
    wrong: bool, alone: dict[str, tuple[object, ...]], checkpoint: CheckpointMaker
) -> None:
    """The draft tokens are right, or end in ones that the grammar may not allow."""
    folder = checkpoint("llama")
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=4096, speculation="off"), folder)

    def propose(sequence: Any) -> list[int]:
        tokens = alone[sequence.id][0]
        assert isinstance(tokens, list)
        known: list[int] = tokens[sequence.generated :][:3]
        return [*known, 64, 5] if wrong else known

    engine._scheduler.propose_drafts = each(propose)
    texts = run(engine, requests_of(engine, folder, MIXED))
    engine.close()
    assert texts == alone


def test_speculation_changes_nothing(
    alone: dict[str, tuple[object, ...]], checkpoint: CheckpointMaker
) -> None:
    """The second round also drafts from the texts of the first."""
    folder = checkpoint("llama")
    engine = eager(load_engine(EngineSettings(threads=1, kv_cache_tokens=4096), folder), "auto")
    for _ in range(2):
        assert run(engine, requests_of(engine, folder, MIXED)) == alone
    assert engine.stats.recent_accepted_tokens > 0
    assert engine.stats.grammar_accepted_tokens > 0
    engine.close()


def test_forced_tokens_take_no_separate_steps(checkpoint: CheckpointMaker) -> None:
    """Nearly all of this text is fixed by the schema; each remaining token takes a step."""
    folder = checkpoint("llama")
    schema = {
        "type": "object",
        "properties": {
            name: {"const": name}
            for name in ("department", "priority_of_the_ticket", "customer_identification")
        },
        "required": ["department", "priority_of_the_ticket", "customer_identification"],
        "additionalProperties": False,
    }
    constraint = constrained("json_schema", json.dumps(schema), temperature=0.0, max_tokens=400)
    steps: dict[str, int] = {}
    texts = []
    for chosen in ("off", "grammar"):
        engine = load_engine(
            EngineSettings(threads=1, kv_cache_tokens=4096, speculation="off"), folder
        )
        if chosen == "grammar":
            eager(engine, "grammar")
        texts.append(run(engine, requests_of(engine, folder, [constraint])))
        steps[chosen] = engine.stats.steps
        accepted = engine.stats.grammar_accepted_tokens
        engine.close()
    assert texts[0] == texts[1]
    assert accepted > steps["off"] / 2
    assert steps["grammar"] < steps["off"] / 3


def test_a_text_continues_where_an_engine_died(
    alone: dict[str, tuple[object, ...]], checkpoint: CheckpointMaker
) -> None:
    """The matcher of a resubmitted request is positioned after the delivered tokens."""
    folder = checkpoint("llama")
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=4096), folder)
    for request in requests_of(engine, folder, MIXED)[::2]:
        whole = alone[request.id][0]
        assert isinstance(whole, list)
        half = len(whole) // 2
        again = EngineRequest(
            id=request.id,
            payload=msgspec.structs.replace(generated(request), output=whole[:half]),
        )
        assert run(engine, [again])[request.id][0] == whole[half:]
    engine.close()


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("llama")
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=4096), folder)
    [request] = requests_of(engine, folder, MIXED[:1])
    engine.add(request)
    assert engine.has_work
    assert engine.stats.waiting == 1
    engine.abort([request.id])
    assert not engine.has_work
    engine.close()
