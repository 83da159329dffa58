"""Comparison of models with a base: loss on the same tokens, answers to the same questions, size, speed."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from galley.bench.engine import EngineBench
from galley.bench.report import Step
from galley.calibration.forward import TeacherForced
from galley.calibration.matrices import check_dense, linear_weights
from galley.calibration.measures import Divergence, Loss, TokenLoss, agreement, following
from galley.calibration.sensitivity import Part, parts_of
from galley.engine.read_model import read_for_executor
from galley.errors import SettingsError
from galley.formats.source import BUNDLED, resolve_model
from galley.llm.evaluate import Match, ask
from galley.llm.llm import LLM
from galley.ops.choice import choose_executor
from galley.quality.texts import Texts, Window
from galley.quant.grid import Scheme
from galley.settings.engine import EngineSettings
from galley.types import SamplingParams
from galley.types.model_info import ModelInfo

OnWork: TypeAlias = Callable[[str], None]

_GREEDY_PROMPTS: Final = 16
_PROMPT_TOKENS: Final = 32
_GREEDY_TOKENS: Final = 64
_SPEED_PROMPT: Final = 256
_SPEED_TOKENS: Final = 24
_REPEATS: Final = 3
_PART_TOKENS: Final = 1024
_PART_GROUP: Final = 128


@dataclass(frozen=True)
class Side:
    """The figures of one model by itself.

    Attributes:
        name: of the checkpoint.
        weights: the type of most of its matrices, such as "int4": as served, not as requested.
        activations: the type to which the inputs of its linear layers are rounded.
        weight_bytes: in memory.
        prefill_tokens_per_s: of a prompt, the best of some runs.
        decode_tokens_per_s: of one sequence, the best of some runs.
        right, questions: questions answered correctly, and questions in all; (0, 0) where there were none.
    """

    name: str
    weights: str
    activations: str
    weight_bytes: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    right: int
    questions: int

    @property
    def accuracy(self) -> float | None:
        """Share of right answers, if there was any question."""
        return self.right / self.questions if self.questions else None

    @property
    def label(self) -> str:
        """The weight type and, for integers, the input type."""
        return f"{self.weights} x {self.activations}" if self.weights[:3] == "int" else self.weights


@dataclass(frozen=True)
class Measured:
    """A model's loss compared with the base.

    Attributes:
        side: the model by itself.
        loss: over all positions of the texts.
        tokens: the loss by the token that the base ranks first, worst first.
        quantiles: of the divergence in nats: of 0, 1, ... 100 % of the positions.
        greedy_tokens: mean number of tokens before the model departs from the base's greedy text.
        greedy_length: mean length of these texts, which is the upper bound of ``greedy_tokens``.
    """

    side: Side
    loss: Loss
    tokens: tuple[TokenLoss, ...]
    quantiles: tuple[float, ...]
    greedy_tokens: float
    greedy_length: float


@dataclass(frozen=True)
class Comparison:
    """All results of ``galley eval quality``.

    Attributes:
        base: the reference for the others.
        measured: the model, then the same checkpoint in other weight types.
        source: where the texts come from.
        windows: how many texts.
        spelled: token -> its text, of the tokens that lose most.
        parts: the base's loss when one part of it is quantized; empty if that was not requested.
    """

    base: Side
    measured: tuple[Measured, ...]
    source: str
    windows: int
    spelled: dict[int, str]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A prompt, and the base's answer to it at temperature 0."""

    prompt: Window
    said: Window


def compare(
    base: EngineSettings,
    models: Sequence[EngineSettings],
    texts_of: Callable[[LLM], Texts],
    *,
    match: Match = "exact",
    max_tokens: int = 256,
    sensitivity: bool = False,
    on_work: OnWork = lambda name: None,
) -> Comparison:
    """Compare models with a base. Two models are in memory at a time.

    Args:
        base: the settings of the reference.
        models: settings of the measured models; their checkpoints have the base's vocabulary.
        texts_of: makes the texts with the loaded base.
        match: when an answer is right, see :func:`galley.llm.evaluate.is_right`.
        max_tokens: of an answer.
        sensitivity: also measure each part of the base by itself, as int4 and int8.
        on_work: called with the name of the work that begins.

    Raises:
        ModelError, SettingsError: a model cannot be used, or has another vocabulary than the base.
        RequestError: the texts cannot be used.
    """
    on_work("the base")
    with LLM.from_settings(base) as llm:
        texts = texts_of(llm)
        greedy = _greedy_texts(llm, texts)
        answers = _right_answers(llm, base, texts, match, max_tokens)
        vocabulary, spell = llm.info.require_text().vocab_size, llm.tokenizer.token_text
    base_side = _side(base, *answers)
    measured = []
    for model in models:
        on_work(f"{model.model or BUNDLED} as {model.weight_dtype}")
        with LLM.from_settings(model) as llm:
            if llm.info.require_text().vocab_size != vocabulary:
                raise SettingsError(
                    f"{model.model} has {llm.info.require_text().vocab_size} tokens, {base_side.name} "
                    f"{vocabulary}: --against needs a checkpoint with the same vocabulary"
                )
            answers = _right_answers(llm, model, texts, match, max_tokens)
        side = _side(model, *answers)
        measured.append(_measure(base, model, side, texts, greedy))
    worst = {one.token for each in measured for one in each.tokens}
    return Comparison(
        base_side,
        tuple(measured),
        texts.source,
        len(texts.windows),
        {token: spell(token) for token in sorted(worst)},
        tuple(_parts(base, texts)) if sensitivity else (),
    )


def _parts(base: EngineSettings, texts: Texts) -> list[Part]:
    """Measure the parts of the base's own weights, as in its checkpoint, on the first of the texts."""
    chosen = choose_executor(base.executor, base.device)
    folder = resolve_model(base.model, revision=base.revision)
    own = dataclasses.replace(base, weight_dtype="auto", kv_dtype="float32")
    model, _, factory = read_for_executor(own, folder, chosen)
    check_dense(model)
    windows: list[Window] = []
    for window in texts.windows:
        if windows and sum(map(len, windows)) + len(window) > _PART_TOKENS:
            break
        windows.append(window)
    schemes = (Scheme(4, _PART_GROUP), Scheme(8))
    return parts_of(model, factory, windows, linear_weights(model.program), schemes)


def _greedy_texts(llm: LLM, texts: Texts) -> list[GreedyText]:
    places = [
        window[begin : begin + _PROMPT_TOKENS]
        for window in texts.windows
        for begin in range(0, len(window), _PROMPT_TOKENS)
    ]
    prompts = places[:: -(-len(places) // _GREEDY_PROMPTS)]
    room = llm.info.max_request_tokens - _PROMPT_TOKENS
    params = SamplingParams(temperature=0.0, max_tokens=min(_GREEDY_TOKENS, room))
    outputs = llm.generate([list(prompt) for prompt in prompts], params)
    return [
        GreedyText(prompt, tuple(output.token_ids))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def _right_answers(
    llm: LLM, settings: EngineSettings, texts: Texts, match: Match, max_tokens: int
) -> tuple[ModelInfo, int, int]:
    """Return the model's info, the number of its right answers, and the number of questions."""
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    answered = ask(
        llm,
        texts.questions,
        greedy,
        match=match,
        plain=not llm.has_chat_template,
        together=settings.running_limit,
        advance=lambda n: None,
    )
    return llm.info, sum(one.right for one in answered), len(answered)


def _side(settings: EngineSettings, info: ModelInfo, right: int, questions: int) -> Side:
    bench = EngineBench(settings)
    vocab_size, length = info.require_text().vocab_size, info.max_request_tokens // 2
    prompt = [i % vocab_size for i in range(min(_SPEED_PROMPT, length))]

    def rate(run: Callable[[], Sequence[Step]]) -> float:
        steps = [run() for _ in range(_REPEATS)]
        return max(sum(s.rows for s in one) / sum(s.seconds for s in one) for one in steps)

    prefill = rate(lambda: bench.prefill(prompt))
    decode = rate(lambda: bench.decode([prompt[:8]], _SPEED_TOKENS))
    assert info.ledger is not None
    return Side(
        settings.model or BUNDLED,
        _main_kind(info),
        info.require_program().activations,
        info.ledger.weights,
        prefill,
        decode,
        right,
        questions,
    )


def _main_kind(info: ModelInfo) -> str:
    """Return the weight type of most parameters: the receipt lists the most common first."""
    if info.weights is None:
        return info.require_program().weight_dtype
    return info.weights.kind.split(" ")[0].rstrip(",")


def unrounded(settings: EngineSettings) -> EngineSettings:
    """Return the settings of a base: the weights as requested, and nothing else rounded.

    Inputs of linear layers, keys and values stay float32. The reference executor computes in its dtype, so
    there weights are widened, too.
    """
    name, _ = choose_executor(settings.executor, settings.device)
    return dataclasses.replace(
        settings,
        dtype="auto" if name == "cpu" else "float32",
        activations="float32",
        kv_dtype="float32",
    )


def _measure(
    base: EngineSettings,
    model: EngineSettings,
    side: Side,
    texts: Texts,
    greedy: Sequence[GreedyText],
) -> Measured:
    longest = max(
        *(len(window) for window in texts.windows),
        *(len(one.prompt) + len(one.said) for one in greedy),
    )
    divergence = Divergence()
    with _forced(base, longest) as truth, _forced(model, longest) as forced:
        for window in texts.windows:
            after = following([window])
            for (first, p), (_, q) in zip(truth.logits(window), forced.logits(window), strict=True):
                divergence.add(p, q, after[first : first + len(p)])
        same = [_agreement(forced, one) for one in greedy]
    return Measured(
        side,
        divergence.loss(),
        tuple(divergence.by_token()),
        divergence.quantiles(),
        float(np.mean(same)),
        float(np.mean([len(one.said) for one in greedy])),
    )


def _forced(settings: EngineSettings, longest: int) -> TeacherForced:
    folder = resolve_model(settings.model, revision=settings.revision)
    return TeacherForced(settings, folder, longest=longest)


def _agreement(forced: TeacherForced, text: GreedyText) -> int:
    """Count the tokens of the base's greedy text before the first that the model would not generate."""
    ids = (*text.prompt, *text.said)
    expected = np.concatenate([logits.argmax(axis=1) for _, logits in forced.logits(ids)])
    return agreement(expected[len(text.prompt) - 1 :], np.array(text.said, dtype=np.int64))
