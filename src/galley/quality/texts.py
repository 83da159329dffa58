"""The texts on which models are compared or calibrated: a file's, or the model's own."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from galley.calibration.gate import first_token
from galley.demo import heldout
from galley.errors import RequestError
from galley.formats.reader import open_checkpoint
from galley.llm.evaluate import Question, read_questions
from galley.llm.llm import LLM
from galley.types import SamplingParams

Window = tuple[int, ...]

_Encoded: TypeAlias = tuple[list[int], list[bool]]
"""Token ids of a text and, where that was asked, which are the assistant's."""

_SHORTEST: Final = 2
"""Tokens of a text that says anything: one that follows another."""

_LINES: Final = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Texts:
    """Token ids, and where they come from.

    Attributes:
        windows: each begins as a text of its own.
        source: for people: a file, or that the model generated them.
        questions: of a file that has answers, too.
        answers: of each window, which tokens are the assistant's; empty if nobody asked.
    """

    windows: tuple[Window, ...]
    source: str
    questions: tuple[Question, ...] = ()
    answers: tuple[tuple[bool, ...], ...] = ()

    @property
    def tokens(self) -> int:
        """Of all windows."""
        return sum(map(len, self.windows))


def read_texts(
    llm: LLM, path: Path, *, context: int, tokens: int, mark_answers: bool = False
) -> Texts:
    """The beginning of a file, up to so many tokens.

    A file that ends in .jsonl has a text on each line: ``{"text": ...}``, a chat log ``{"messages": ...}``,
    or a question with its answer, ``{"prompt": ..., "answer": ...}``. Any other is one text in UTF-8.

    Args:
        llm: whose tokenizer and chat template make tokens of it.
        path: the file.
        context: tokens of a window at most.
        tokens: in all.
        mark_answers: tell which tokens are the assistant's; windows that have none are left out.

    Raises:
        RequestError: the file cannot be read, or has too little text, or is to have answers and has none.
    """
    if mark_answers and path.suffix not in _LINES:
        raise RequestError(f"{path}: answers are told apart in JSON lines alone ({_LINES[0]})")
    questions: tuple[Question, ...] = ()
    try:
        if path.suffix in _LINES:
            encoded = list(_lines(llm, path, mark_answers))
            questions = _questions(path)
        else:
            encoded = [(llm.tokenizer.encode(path.read_text(encoding="utf-8")), [])]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    cut = list(_cut(encoded, context, tokens))
    if not cut:
        raise RequestError(f"{path} has no text of at least {_SHORTEST} tokens")
    windows = tuple(window for window, _ in cut)
    answers = tuple(own for _, own in cut) if mark_answers else ()
    return Texts(windows, str(path), questions, answers)


def own_texts(llm: LLM, *, context: int, tokens: int, seed: int = 0) -> Texts:
    """What the model says when nobody asks it anything: sampled at temperature 1, from its first token on.

    Models predict their own text better than people's, so a loss is easier to see on a file of real use.
    """
    length = min(context, llm.info.max_request_tokens) - 1
    count = max(1, -(-tokens // length))
    start = _first_tokens(llm)
    params = [
        SamplingParams(
            temperature=1.0, top_p=1.0, top_k=0, seed=seed + i, max_tokens=length, ignore_eos=True
        )
        for i in range(count)
    ]
    outputs = llm.generate([start] * count, params)
    windows = tuple((*start, *output.token_ids)[:context] for output in outputs)
    return Texts(windows, "text that the base generated (temperature 1)")


def demo_questions() -> tuple[Question, ...]:
    """The held-out sets of the bundled model, with their only right answers."""
    return tuple(
        Question([dict(message) for message in item.messages], (item.answer,))
        for number in heldout.SETS
        for item in heldout.read(number)
    )


def _first_tokens(llm: LLM) -> list[int]:
    """What the tokenizer puts before a text, or the model's first token where it puts nothing."""
    return llm.tokenizer.encode("") or [first_token(open_checkpoint(Path(llm.info.path)))]


def _lines(llm: LLM, path: Path, mark: bool) -> Iterator[_Encoded]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            read: Any = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: {error}") from error
        if not isinstance(read, dict):
            raise RequestError(f"{path}, line {number}: expected an object")
        yield _encoded(llm, read, f"{path}, line {number}", mark)


def _encoded(llm: LLM, line: dict[str, Any], where: str, mark: bool) -> _Encoded:
    if isinstance(line.get("text"), str):
        if mark:
            raise RequestError(
                f"{where}: a text has no answer: needs messages, or prompt and answer"
            )
        return llm.tokenizer.encode(line["text"]), []
    answer = line.get("answer")
    first = answer[0] if isinstance(answer, list) and answer else answer
    said = first if isinstance(first, str) else ""
    prompt, messages = line.get("prompt"), line.get("messages")
    if isinstance(prompt, str) and not llm.has_chat_template:
        ids = llm.tokenizer.encode(f"{prompt}{said}")
        return ids, _behind(llm.tokenizer.encode(prompt), ids) if mark else []
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list):
        raise RequestError(f"{where}: needs text, messages, or prompt and answer")
    if said:
        messages = [*messages, {"role": "assistant", "content": said}]
    ids = llm.encode_chat(messages, add_generation_prompt=False)
    return ids, _assistants(llm, messages, ids, where) if mark else []


def _assistants(llm: LLM, messages: list[Any], ids: list[int], where: str) -> list[bool]:
    """Which tokens of a conversation the assistant writes, its end of a turn included."""
    own = [False] * len(ids)
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        before = llm.encode_chat(messages[:i])
        after = llm.encode_chat(messages[: i + 1], add_generation_prompt=False)
        # Some templates write a message otherwise once others follow.
        if ids[: len(after)] == after and after[: len(before)] == before:
            own[len(before) : len(after)] = [True] * (len(after) - len(before))
    if not any(own):
        raise RequestError(
            f"{where}: no message of the assistant can be told in the chat template's text"
        )
    return own


def _behind(first: list[int], ids: list[int]) -> list[bool]:
    """Of the tokens of a text, those behind what it has in common with its first part by itself."""
    pairs = enumerate(zip(first, ids, strict=False))
    common = next((i for i, (a, b) in pairs if a != b), min(len(first), len(ids)))
    return [i >= common for i in range(len(ids))]


def _questions(path: Path) -> tuple[Question, ...]:
    """Of a file all of whose lines have an answer."""
    with path.open(encoding="utf-8") as lines:
        if all("answer" in json.loads(line) for line in lines if line.strip()):
            return tuple(read_questions(path))
    return ()


def _cut(
    encoded: Sequence[_Encoded], context: int, tokens: int
) -> Iterator[tuple[Window, tuple[bool, ...]]]:
    left = tokens
    for ids, own in encoded:
        for begin in range(0, len(ids), context):
            at = slice(begin, begin + min(context, left))
            window, marks = tuple(ids[at]), tuple(own[at])
            if len(window) < _SHORTEST:
                break
            if own and not any(marks[1:]):
                continue
            left -= len(window)
            yield window, marks
