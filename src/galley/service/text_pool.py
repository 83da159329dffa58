"""Text work of one model, with budgets: chat templates and tokenization run in worker processes."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from galley.errors import RequestError
from galley.service.text_frames import (
    CheckGrammar,
    Compiled,
    CutTexts,
    Decoded,
    DecodeIds,
    EncodeChat,
    EncodePairs,
    EncodeTexts,
    FromText,
    Ids,
    Job,
    Pairs,
    Refused,
    TextStart,
    encode,
)
from galley.service.text_lane import Lane
from galley.service.turns import ANONYMOUS, Share
from galley.settings.config import Settings
from galley.types import Grammar, SamplingParams

_SMALL_BYTES: Final = 64 * 1024
"""Size above which jobs run in a separate worker, so that short conversations do not wait for them."""

_GRAMMARS_KEPT: Final = 256
_MOST_KEPT: Final = 16 * 1024
"""Number of cached results of grammars, and maximum length of such a grammar in characters."""

_MOST_ENCODED_BYTES: Final = 32 << 20
_ENTRY_BYTES: Final = 400
_ID_BYTES: Final = 36
"""Estimated size of all token ids that are remembered, and of one text and one id."""

_BUDGET_SECONDS: Final = 60.0
"""Seconds for which an exceeded budget of a grammar is cached, since the machine may have been busy."""


class TextPool:
    """The workers that encode the texts and conversations of one model's requests.

    There are at most three, each started when it is first needed: one for conversations, so that a chat
    template that loops delays no other text; one for other texts; and one for grammars and large jobs.
    Each runs one job at a time. A job that takes more time or memory than the settings allow
    (``text_seconds``, ``text_bytes``) ends its worker and is reported as an error of the request; the
    next job gets a new worker.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        folder: Path,
        *,
        unchanged: Callable[[], bool],
        remembers: bool = False,
    ) -> None:
        """Create the pool without workers.

        Args:
            settings: the settings with the budgets.
            name, folder: the model's name and folder.
            unchanged: returns whether the folder's files are still those that are served. If they are not,
                no worker is started, since it would load different files.
            remembers: whether to keep the token ids of texts, for requests that come again.
        """
        self._unchanged = unchanged
        start = TextStart(str(folder), settings.text_seconds, settings.text_bytes)
        self._grammars = _Grammars()
        self._encoded = _Encoded() if remembers else None
        self._chats = Lane(name, start, unchanged)
        self._texts = Lane(name, start, unchanged)
        self._large = Lane(name, start, unchanged)

    @property
    def _lanes(self) -> tuple[Lane, Lane, Lane]:
        return self._chats, self._texts, self._large

    @property
    def busy(self) -> bool:
        """Whether a worker has a job."""
        return any(lane.busy for lane in self._lanes)

    @property
    def pids(self) -> list[int]:
        """The process ids of the running workers."""
        return [pid for lane in self._lanes if (pid := lane.pid) is not None]

    async def begin(self, *, chats: bool) -> None:
        """Start the worker that most requests will need; :meth:`loaded` waits for it.

        Args:
            chats: whether the model has a chat template.

        Raises:
            EngineNotReady: no worker can be started.
        """
        await (self._chats if chats else self._texts).begin(with_server=True)

    async def loaded(self, *, chats: bool) -> None:
        """Wait until that worker has loaded the checkpoint's tokenizer and chat template.

        Wait for this before loading the same files in another process, without a budget.

        Raises:
            ModelError: the two cannot be used, or take too long or too much memory to load.
            EngineNotReady: no worker can be started.
        """
        await (self._chats if chats else self._texts).loaded()

    def of(self, share: Share = ANONYMOUS) -> "TextWork":
        """Return the text work of one tenant, which takes turns with other tenants by its weight."""
        return TextWork(self, share)

    async def work(self, job: Job, param: str, share: Share) -> FromText:
        """Run a job and return its result.

        Raises:
            RequestError: it is refused; the error names ``param``, or a field that the job knows.
            QueueFull: too much text work waits already.
        """
        frame = encode(job)
        key = b""
        if self._encoded is not None:
            key = blake2b(frame, digest_size=16).digest()
            if (known := self._encoded.find(key)) is not None:
                return known
        lane = self._chats if isinstance(job, EncodeChat) else self._texts
        if len(frame) > _SMALL_BYTES:
            lane = self._large
        answer = _taken(await self._that_runs(lane).run(frame, param, share), param)
        if self._encoded is not None:
            self._encoded.keep(key, answer)
        return answer

    async def check_grammar(self, grammar: Grammar, field: str, share: Share) -> Grammar:
        """Check and compile a grammar; answers are cached, refusals included.

        Raises:
            RequestError: the grammar cannot be followed; the error names ``field``.
            QueueFull: too much text work waits already.
        """
        job = CheckGrammar(grammar, field)
        answer = self._grammars.find(job)
        if answer is None:
            # In the lane for large jobs, so that conversations do not wait for grammars.
            lane = self._that_runs(self._large)
            answer = await lane.run(encode(job), field, share, lambda: self._grammars.find(job))
            self._grammars.keep(job, answer)
        answer = _taken(answer, field)
        assert isinstance(answer, Compiled)
        return answer.grammar

    def _that_runs(self, lane: Lane) -> Lane:
        """Return the lane, or another one with a worker if none can be started in this lane."""
        if lane.started or self._unchanged():
            return lane
        return next((other for other in self._lanes if other.started), lane)

    async def close(self) -> None:
        """End the workers; running jobs fail. Idempotent."""
        for lane in self._lanes:
            await lane.close()


class TextWork:
    """Encodes the texts and conversations of one tenant. Created by :meth:`TextPool.of`.

    Every method raises RequestError for work that takes too long or too much memory, and for a text on
    which the tokenizer fails, and QueueFull when too much text work waits already.
    """

    def __init__(self, pool: TextPool, share: Share) -> None:
        self._pool = pool
        self._share = share

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        context: int | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation; see :meth:`galley.text.template.ChatTemplate.encode`.

        Raises:
            RequestError: the template refuses the messages.
        """
        job = EncodeChat(
            messages,
            list(tools),
            dict(variables or {}),
            add_generation_prompt,
            continue_last,
            context,
        )
        answer = await self._pool.work(job, "messages", self._share)
        assert isinstance(answer, Ids)
        return answer.ids[0]

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        context: int | None = None,
    ) -> list[list[int]]:
        """Return the token ids of each text; see :meth:`galley.text.tokenizer.Tokenizer.encode_all`.

        Raises:
            RequestError: a text is certainly longer than ``context``.
        """
        if not texts:
            return []
        job = EncodeTexts(list(texts), add_special_tokens, context)
        answer = await self._pool.work(job, "prompt", self._share)
        assert isinstance(answer, Ids)
        return answer.ids

    async def encode_cut(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Return at most ``most`` token ids of each text.

        See :meth:`galley.text.tokenizer.Tokenizer.encode_cut`.

        Raises:
            RequestError: ``most`` is too small.
        """
        if not texts:
            return []
        answer = await self._pool.work(CutTexts(list(texts), most), "input", self._share)
        assert isinstance(answer, Ids)
        return answer.ids

    async def encode_pairs(
        self, first: str, seconds: Sequence[str], most: int | None, most_second: int | None
    ) -> list[tuple[list[int], int]]:
        """Return the token ids of pairs; see :meth:`galley.text.tokenizer.Tokenizer.encode_pairs`.

        Raises:
            RequestError: as in :meth:`encode_cut`.
        """
        job = EncodePairs(first, list(seconds), most, most_second)
        answer = await self._pool.work(job, "documents", self._share)
        assert isinstance(answer, Pairs)
        return answer.pairs

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        answer = await self._pool.work(DecodeIds(list(ids)), "tokens", self._share)
        assert isinstance(answer, Decoded)
        return answer.text

    async def check_grammar(self, params: SamplingParams, field: str) -> SamplingParams:
        """Return the parameters with their grammar, if they have one, checked and compiled.

        Args:
            params: the request's parameters.
            field: the request's field that has the grammar.

        Raises:
            RequestError: the grammar cannot be followed; see :func:`galley.grammar.check.check`.
        """
        if params.grammar is None:
            return params
        compiled = await self._pool.check_grammar(params.grammar, field, self._share)
        return msgspec.structs.replace(params, grammar=compiled)


class _Encoded:
    """The token ids of the latest texts and conversations, by digests of their jobs."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, tuple[FromText, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: bytes) -> FromText | None:
        kept = self._answers.get(key)
        if kept is None:
            return None
        self._answers.move_to_end(key)
        return kept[0]

    def keep(self, key: bytes, answer: FromText) -> None:
        if not isinstance(answer, Ids) or key in self._answers:
            return
        size = _ENTRY_BYTES + _ID_BYTES * sum(map(len, answer.ids))
        self._answers[key] = (answer, size)
        self._bytes += size
        while self._bytes > _MOST_ENCODED_BYTES:
            self._bytes -= self._answers.popitem(last=False)[1][1]


class _Grammars:
    """The cached answers to the latest grammars, so that the same grammar need not be compiled again."""

    def __init__(self) -> None:
        self._answers: OrderedDict[CheckGrammar, tuple[float, FromText]] = OrderedDict()

    def find(self, job: CheckGrammar) -> FromText | None:
        kept = self._answers.get(job)
        if kept is None or kept[0] < time.monotonic():
            return None
        self._answers.move_to_end(job)
        return kept[1]

    def keep(self, job: CheckGrammar, answer: FromText) -> None:
        if len(job.grammar.source) > _MOST_KEPT or not isinstance(answer, Compiled | Refused):
            return
        over = isinstance(answer, Refused) and answer.budget
        until = time.monotonic() + _BUDGET_SECONDS if over else float("inf")
        self._answers.pop(job, None)
        self._answers[job] = (until, answer)
        if len(self._answers) > _GRAMMARS_KEPT:
            self._answers.popitem(last=False)


def _taken(answer: FromText, param: str) -> FromText:
    """Return the answer; raise RequestError if it is a refusal."""
    if isinstance(answer, Refused):
        raise RequestError(answer.message, param=answer.param or param, code=answer.code)
    return answer
