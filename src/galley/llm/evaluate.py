"""Evaluation of a language model on one's own data: perplexity of a text, and accuracy on questions."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from galley.errors import RequestError
from galley.llm.llm import LLM
from galley.types import SamplingParams

Match: TypeAlias = Literal["exact", "contains"]
Advance: TypeAlias = Callable[[int], None]

DEFAULT_CONTEXT: Final = 2048


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        perplexity: e to the power of ``nats_per_token``; depends on the tokenizer.
        nats_per_token: mean of the negative log-probabilities of the tokens.
        bits_per_byte: bits per byte of the text in UTF-8; comparable between models with different
            tokenizers.
        tokens: number of predicted tokens: all but the first.
        windows: number of windows in which the text was read.
        context: maximum number of tokens in a window.
        stride: tokens from the start of a window to the start of the next one.
    """

    perplexity: float
    nats_per_token: float
    bits_per_byte: float
    tokens: int
    windows: int
    context: int
    stride: int


@dataclass(frozen=True)
class Question:
    """A line of a file of questions.

    Attributes:
        conversation: messages, or the text of a prompt.
        answers: the right answers.
    """

    conversation: str | list[dict[str, Any]]
    answers: tuple[str, ...]


class _Line(msgspec.Struct, forbid_unknown_fields=False):
    answer: str | list[str]
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Answered:
    """A model's answer to a question, and whether it is right."""

    question: Question
    said: str
    right: bool


class TextScorer:
    """Measures the perplexity of a text in overlapping windows, counting each token once.

    Windows begin ``stride`` tokens apart. Only tokens that no earlier window contained are counted,
    so every token outside the first window is predicted from at least ``context - stride`` tokens,
    as in transformers' "Perplexity of fixed-length models".

    Attributes:
        windows: the number of windows.
    """

    def __init__(
        self, llm: LLM, text: str, *, context: int | None = None, stride: int | None = None
    ) -> None:
        """Tokenize the text.

        Args:
            llm: the model.
            text: the text; it begins with the tokens that the tokenizer puts before a text, such as
                BOS.
            context: maximum number of tokens in a window; default: 2,048, or the model's limit if
                that is less.
            stride: tokens between the starts of windows; default: half of ``context``.

        Raises:
            RequestError: the text has fewer than two tokens, or a number is out of range.
        """
        limit = llm.info.max_request_tokens
        context = min(DEFAULT_CONTEXT, limit) if context is None else context
        stride = context // 2 if stride is None else stride
        if not 2 <= context <= limit:
            raise RequestError(
                f"context is {context}, expected 2 to {limit} tokens", param="context"
            )
        if not 1 <= stride < context:
            raise RequestError(
                f"stride is {stride}, expected 1 to {context - 1}, less than the context",
                param="stride",
            )
        self._llm = llm
        self._ids = llm.tokenizer.encode(text)
        if len(self._ids) < 2:
            raise RequestError("the text has fewer than two tokens, so there is nothing to predict")
        self._bytes = len(text.encode("utf-8", "replace"))
        self._context = context
        self._stride = stride
        self._windows = list(self._cut())

    @property
    def windows(self) -> int:
        """Number of windows in which the text is read."""
        return len(self._windows)

    def run(self, together: int, advance: Advance) -> Perplexity:
        """Measure the perplexity.

        Args:
            together: windows in one batch.
            advance: called with the number of windows that each batch finished.
        """
        nats: list[float] = []
        for first in range(0, len(self._windows), together):
            batch = self._windows[first : first + together]
            scores = self._llm.score([self._ids[begin:end] for begin, _, end in batch])
            for (_, new, end), logprobs in zip(batch, scores, strict=True):
                nats += [-logprob for logprob in logprobs[new - end :]]
            advance(len(batch))
        mean = math.fsum(nats) / len(nats)
        return Perplexity(
            perplexity=math.exp(mean),
            nats_per_token=mean,
            bits_per_byte=math.fsum(nats) / math.log(2) / self._bytes,
            tokens=len(nats),
            windows=len(self._windows),
            context=self._context,
            stride=self._stride,
        )

    def _cut(self) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, first token that counts, end) of each window."""
        begin, new = 0, 1
        while new < len(self._ids):
            end = min(begin + self._context, len(self._ids))
            yield begin, new, end
            begin, new = begin + self._stride, end


def read_questions(path: Path) -> list[Question]:
    """Read the lines of a JSON Lines file: ``{"prompt": "2 + 2 =", "answer": "4"}``.

    A line may have ``messages`` instead of ``prompt``, and ``answer`` may be a list of right
    answers; other fields are ignored.

    Raises:
        RequestError: the file cannot be read, has no line, or has an invalid one, whose number the
            error names.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    questions = [
        _question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not questions:
        raise RequestError(f"{path} is empty")
    return questions


def _question(path: Path, number: int, line: bytes) -> Question:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}, line {number}: {error}") from error
    conversation = read.prompt if read.messages is None else read.messages
    if conversation is None or None not in (read.prompt, read.messages):
        raise RequestError(f"{path}, line {number}: needs either prompt or messages")
    answers = (read.answer,) if isinstance(read.answer, str) else tuple(read.answer)
    if not any(answer.strip() for answer in answers):
        raise RequestError(f"{path}, line {number}: answer is missing or empty")
    return Question(conversation, answers)


def is_right(said: str, answers: Sequence[str], match: Match) -> bool:
    """Return whether the model's text equals one of the answers, or contains one.

    White space at the beginning and end of either is ignored.
    """
    if match == "contains":
        return any(answer.strip() in said for answer in answers if answer.strip())
    return said.strip() in [answer.strip() for answer in answers]


def ask(
    llm: LLM,
    questions: Sequence[Question],
    params: SamplingParams,
    *,
    match: Match,
    system: str = "",
    plain: bool = False,
    together: int,
    advance: Advance,
) -> list[Answered]:
    """Put questions to a model.

    Args:
        llm: the model.
        questions: the questions, in any order; the answers are returned in the same order.
        params: sampling parameters of the answers.
        match: when an answer is right, see :func:`is_right`.
        system: system message put before prompts.
        plain: continue prompts as they are, without the chat template.
        together: questions in one batch.
        advance: called with the number of questions that each batch answered.

    Raises:
        RequestError: the model has no chat template, or a question does not fit its context.
    """
    answered: list[Answered] = []
    for first in range(0, len(questions), together):
        batch = questions[first : first + together]
        if plain:
            outputs = llm.generate([_plain(question) for question in batch], params)
        else:
            outputs = llm.chat([_chat(question, system) for question in batch], params)
        for question, output in zip(batch, outputs, strict=True):
            right = is_right(output.text, question.answers, match)
            answered.append(Answered(question, output.text, right))
        advance(len(batch))
    return answered


def _plain(question: Question) -> str:
    if not isinstance(question.conversation, str):
        raise RequestError(
            "a question with messages needs the chat template; --plain is for prompts"
        )
    return question.conversation


def _chat(question: Question, system: str) -> list[dict[str, Any]]:
    if not isinstance(question.conversation, str):
        return question.conversation
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question.conversation}]
