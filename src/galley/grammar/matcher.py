"""Grammars in the engine: compiled in parallel with its steps, and followed during the forward pass."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.types import Grammar

if TYPE_CHECKING:  # imported with the first grammar, because it takes 0.1 s
    from llguidance import LLMatcher, LLTokenizer

    from galley.grammar.digits import DigitRun, Digits

Mask: TypeAlias = npt.NDArray[np.float32]
"""[vocab, rounded up to 32] values to add to logits: 0, or -inf for forbidden next tokens.

Adding takes at most a sixth of the time of writing -inf by a boolean mask.
"""

_KEPT: Final = 64
"""Number of compiled grammars that are kept for later requests."""

_WORD_BITS: Final = 32
_OF_OCTET: Final = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(0),
    np.float32(-np.inf),
)
"""[256, 8] the mask of eight tokens, indexed by the bits of the allowed ones."""

_STACK_BYTES: Final = 64 * 2**20
"""Stack size of the threads; larger than during the check of the grammar."""


class GrammarMatcher:
    """The state of one sequence in its grammar. One thread at a time may use it."""

    def __init__(
        self,
        matcher: "LLMatcher",
        vocab_size: int,
        never: int | None,
        numbers: "tuple[Digits, DigitRun] | None" = None,
    ) -> None:
        """Create a matcher.

        Args:
            matcher: state of the sequence.
            vocab_size: rows of the embedding.
            never: a token that is never allowed, whatever ``matcher`` allows.
            numbers: for a grammar of JSON, the limits on digits of numbers, and the digits at the end of
                the text so far.
        """
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._never = never
        self._digits: Digits | None = None
        if numbers is not None:
            self._digits, self._run = numbers

    @property
    def error(self) -> str | None:
        """The reason why the grammar can be followed no further; None if it can."""
        if not self._matcher.is_error():
            return None
        reason = self._matcher.get_error().partition("<")[0].strip()
        return f"the grammar cannot be applied any further: {reason}"

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing may follow it."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> bool:
        """Advance by an output token; return False if the grammar does not allow it, or is in error."""
        if self._digits is not None:
            self._run = self._digits.after(self._run, token)
        return self._matcher.consume_token(token)

    def forced(self) -> list[int]:
        """Return tokens for the bytes that must come next; other tokens may begin with the same bytes."""
        if self._matcher.is_error() or self.ended:
            return []
        return self._matcher.compute_ff_tokens()

    def empty_masks(self, count: int) -> list[Mask]:
        """Return uninitialized masks for :meth:`fill`, which may fill them later."""
        words = -(-self._vocab_size // _WORD_BITS)
        return [np.empty(words * _WORD_BITS, dtype=np.float32) for _ in range(count)]

    def fill(
        self,
        draft_tokens: Sequence[int],
        masks: Sequence[Mask],
        forced: Sequence[int | None] = (),
    ) -> None:
        """Fill the masks of the next token and, for each draft token, of the token after it if accepted.

        A mask after a draft token that the grammar does not allow forbids nothing: its token is never used.

        Args:
            draft_tokens: draft tokens.
            masks: to be filled, one more than draft tokens.
            forced: for each mask the token that must come if the grammar allows it; may be empty.
        """
        followed = 0
        run = self._run if self._digits is not None else None
        for i, mask in enumerate(masks):
            if i != followed:
                mask.fill(0)
                continue
            self._fill(mask)
            if self._digits is not None and run is not None:
                self._digits.limit(mask, run)
                run = self._digits.after(run, draft_tokens[i]) if i < len(draft_tokens) else run
            only = forced[i] if i < len(forced) else None
            if only is not None and mask[only] == 0:
                mask.fill(-np.inf)
                mask[only] = 0
            if i < len(draft_tokens) and not self.ended:
                followed += self._matcher.try_consume_tokens([draft_tokens[i]])
        if followed:
            self._matcher.rollback(followed)

    def _fill(self, mask: Mask) -> None:
        bits = np.zeros(len(mask) // _WORD_BITS, dtype=np.uint32)
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            mask.fill(0)  # allow a token, whose rejection then reports the error
            return
        np.take(_OF_OCTET, bits.view(np.uint8), axis=0, out=mask.reshape(-1, 8), mode="clip")
        if self._never is not None:
            mask[self._never] = -np.inf


class Grammars:
    """Compiles the grammars of one model's requests, and fills the masks of its steps.

    Compilation and filling each have their own thread. Thus neither a large grammar nor the vocabulary,
    which is read for the first grammar, delays a step.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        """Prepare for the model in ``folder``; nothing is read before it is needed."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._digits: Digits | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._compiler: ThreadPoolExecutor | None = None
        self._filler: ThreadPoolExecutor | None = None

    def compile(self, grammar: Grammar, output: Sequence[int]) -> "Future[GrammarMatcher]":
        """Compile a grammar in the background and return the future of a matcher advanced by ``output``.

        The future raises GalleyError if the vocabulary cannot be read. A grammar that cannot be compiled
        yields a matcher in error.
        """
        assert grammar.kind == "compiled", grammar.kind
        if self._compiler is None:
            self._compiler = _thread("galley-grammar")
        return self._compiler.submit(self._compile, grammar.source, tuple(output))

    def fill(self, fills: Sequence[Callable[[], None]]) -> Callable[[], None]:
        """Begin to fill the masks of a step; return a callable that waits until that is done."""
        if self._filler is None:
            self._filler = _thread("galley-masks")
        return self._filler.submit(_call_all, tuple(fills)).result

    def close(self) -> None:
        """End the threads. Idempotent."""
        for thread in (self._compiler, self._filler):
            if thread is not None:
                thread.shutdown(cancel_futures=True)
        self._compiler = self._filler = None

    def _compile(self, source: str, output: Sequence[int]) -> GrammarMatcher:
        from llguidance import LLMatcher

        from galley.grammar.check import LIMITS, is_json
        from galley.grammar.digits import DigitRun, Digits
        from galley.grammar.vocabulary import load_vocabulary

        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(
                self._folder, vocab_size=self._vocab_size, eos_token_ids=self._eos
            )
        compiled = self._kept.pop(source, None)
        if compiled is None:
            compiled = LLMatcher(self._vocabulary, source, log_level=0, limits=LIMITS)
        self._kept[source] = compiled
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        matcher = compiled.deep_copy()
        numbers = None
        if is_json(source):
            self._digits = self._digits or Digits(self._vocabulary)
            numbers = self._digits, DigitRun()
        never = None if self._eos else self._vocabulary.eos_token
        followed = GrammarMatcher(matcher, self._vocab_size, never, numbers)
        for token in output:
            followed.accept(token)
        return followed


def _call_all(fills: Sequence[Callable[[], None]]) -> None:
    for fill in fills:
        fill()


def _thread(name: str) -> ThreadPoolExecutor:
    """Return an executor of one thread, whose stack has room for deep grammars."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    before = threading.stack_size(_STACK_BYTES)
    try:
        executor.submit(int).result()
    finally:
        threading.stack_size(before)
    return executor
