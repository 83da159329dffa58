"""Writes the record of a server's traffic: a line for each request, in files of bounded size."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from galley.errors import SettingsError
from galley.traffic.blocks import Hasher
from galley.traffic.texts import TextCipher, texts_of
from galley.traffic.trace import BLOCK_TOKENS, TraceLine
from galley.types import SamplingParams

log = logging.getLogger("galley.record")

FILE_BYTES: Final = 64 << 20
"""Size of a file, after which the next is begun."""
_MOST_WAITING: Final = 10_000
"""Requests that may wait for the disk; further ones are left out of the record."""
_MOST_TOKENS: Final = 4_000_000
"""Tokens of the requests that may wait: some 150 MB if no two are equal."""

_RECORDED: Final = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "max_tokens", "min_tokens", "ignore_eos"),
)
"""Sampling parameters that are written down: those that cannot contain text."""

_PLAIN: Final = SamplingParams()

Work = Callable[[], bytes]


class Recorder:
    """Records requests. Its methods take microseconds: hashing and writing are a thread's work."""

    def __init__(self, folder: Path, most_bytes: int, cipher: TextCipher | None = None) -> None:
        """Begin the record of this run, next to those of earlier ones.

        Args:
            folder: is created if needed.
            most_bytes: size of all files; the oldest are removed.
            cipher: encrypts texts; None: they are not recorded.

        Raises:
            SettingsError: the folder cannot be written to.
        """
        self._folder = folder
        self._most_bytes = most_bytes
        self._hasher = Hasher()
        self.cipher = cipher
        self._epoch = time.time() - time.monotonic()
        self._name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self._number = 0
        self._lost = 0
        self._broken = False
        self._lines: queue.Queue[tuple[Work, int] | None] = queue.Queue(_MOST_WAITING)
        self._taken = self._done = 0
        """Tokens of all requests so far, and of those that wait no longer; one thread changes each."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._next_file()
        except OSError as error:
            raise SettingsError(
                f"record: {folder} cannot be written to: {error.strerror}"
            ) from error
        self._thread = threading.Thread(target=self._write_all, name="galley-record", daemon=True)
        self._thread.start()

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        arrived: float,
        tenant: str,
        scope: str,
        model: str,
        endpoint: str,
    ) -> "Recorded":
        """Note a request's arrival; its line is written when it has ended.

        Args:
            prompts: token ids of each prompt, which must not change.
            params: the request's sampling.
            arrived: on the monotonic clock.
            tenant: whose request it is; a pseudonym is written.
            scope: prompts of the same scope may share prefixes.
            model, endpoint: where the request goes.
        """
        return Recorded(
            self, prompts, params, arrived + self._epoch, tenant, (scope, model, endpoint)
        )

    def write(self, work: Work, tokens: int) -> None:
        """Have a thread compute lines and write them.

        Args:
            work: returns the lines.
            tokens: tokens that ``work`` holds in memory until it has run.
        """
        waiting = self._taken - self._done
        try:
            if waiting and waiting + tokens > _MOST_TOKENS:
                raise queue.Full
            self._lines.put_nowait((work, tokens))
            self._taken += tokens
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what is not written yet. Idempotent."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
            try:
                self._file.close()
            except OSError as error:
                log.warning("the end of the record cannot be written: %s", error)
        if self._lost:
            log.warning("the record lacks %d requests: the disk was too slow", self._lost)
            self._lost = 0

    @property
    def hasher(self) -> Hasher:
        """The hasher, for the writer's thread alone."""
        return self._hasher

    def _write_all(self) -> None:
        while (waiting := self._lines.get()) is not None:
            work, tokens = waiting
            try:
                if self._file.closed:
                    self._file = self._next_file()
                self._file.write(work())
                if self._lines.empty():
                    self._file.flush()
                if self._file.tell() >= FILE_BYTES:
                    self._file.close()
                self._broken = False
            except OSError as error:
                if not self._broken:
                    log.warning("the record cannot be written: %s", error)
                self._broken = True
                self._lost += 1
            del waiting, work
            self._done += tokens

    def _next_file(self) -> BinaryIO:
        """Open the next file, and remove the oldest ones beyond the bound."""
        files = sorted(self._folder.glob("trace-*.jsonl"))
        total = sum(path.stat().st_size for path in files) + FILE_BYTES
        while files and total > self._most_bytes:
            total -= files[0].stat().st_size
            files.pop(0).unlink(missing_ok=True)
        self._number += 1
        path = self._folder / f"trace-{self._name}-{self._number:04}.jsonl"
        path.touch(mode=0o600)
        return path.open("ab")


class Recorded:
    """A request that is being recorded."""

    def __init__(
        self,
        recorder: Recorder,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        arrived: float,
        tenant: str,
        names: tuple[str, str, str],
    ) -> None:
        """Note the request; :meth:`Recorder.begin` calls this."""
        self._recorder = recorder
        self._prompts = prompts
        self._params = params
        self._arrived = arrived
        self._tenant = tenant
        self._names = names

    def ended(
        self,
        outputs: Sequence[Sequence[Sequence[int]]],
        outcome: str,
        *,
        cached: int,
        ttft_ms: float | None,
        duration_ms: float,
    ) -> None:
        """Write the request's lines, one for each prompt.

        Args:
            outputs: for each prompt and choice, the token ids generated, which must not change.
            outcome: finish reasons, or "unfinished".
            cached: tokens of all prompts from the prefix cache.
            ttft_ms, duration_ms: from arrival to the first and the last token.
        """

        def lines() -> bytes:
            hasher = self._recorder.hasher
            scope, model, endpoint = self._names
            cipher, parts = self._recorder.cipher, []
            for texts in texts_of(self._prompts, outputs):
                prompt = texts.prompt
                hashed = hasher.prompt(prompt, scope)
                line = TraceLine(
                    timestamp=round(1000 * self._arrived, 3),
                    input_length=len(prompt),
                    output_length=sum(map(len, texts.outputs)),
                    hash_ids=hashed.blocks,
                    block_size=BLOCK_TOKENS,
                    session_id=hashed.session,
                    tenant=hasher.pseudonym(self._tenant),
                    model=model,
                    endpoint=endpoint,
                    n=self._params.n,
                    sampling=_sampling(self._params),
                    outcome=outcome,
                    cached_tokens=cached if len(self._prompts) == 1 else None,
                    ttft_ms=ttft_ms,
                    duration_ms=round(duration_ms, 3),
                )
                if cipher is not None:
                    line.texts = cipher.encrypt(texts, line.name)
                parts.append(msgspec.json.encode(line) + b"\n")
            return b"".join(parts)

        generated = sum(len(choice) for choices in outputs for choice in choices)
        self._recorder.write(lines, sum(map(len, self._prompts)) + generated)


def _sampling(params: SamplingParams) -> dict[str, Any]:
    given = {name: getattr(params, name) for name in _RECORDED}
    return {name: value for name, value in given.items() if value != getattr(_PLAIN, name)}
