"""The engine of each simulated replica: its limits, and how long its steps take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from galley.errors import SettingsError
from galley.plan.hardware import Machine
from galley.plan.predict import memory_of
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load, Rates, Shares, peak_rate


class Chunk(NamedTuple):
    """A part of a prompt that a step computes: ``rows`` tokens after ``first`` others."""

    first: int
    rows: int
    last: bool


@dataclass(frozen=True, slots=True)
class Engine:
    """A model on a machine.

    Attributes:
        machine: where it runs.
        rates: of its steps.
        seats: most sequences that run at the same time.
        batch_tokens: token budget of a step.
        kv_tokens: tokens whose keys and values fit in memory.
        decode_factor, prompt_factor: how many times as long as by the roofline decoding takes, and what
            prompts add to it.
        overhead: seconds from a request's arrival at the server until the engine has it, and of its first
            token's way back.
    """

    machine: Machine
    rates: Rates
    seats: int
    batch_tokens: int
    kv_tokens: int
    decode_factor: float = 1.0
    prompt_factor: float = 1.0
    overhead: float = 0.0

    @classmethod
    def of(cls, sizes: ModelSizes, machine: Machine, seats: int, batch_tokens: int) -> Self:
        """Return the engine of a model on a machine.

        Raises:
            SettingsError: the machine does not multiply this precision, or has no room for the model.
        """
        rate, shares = peak_rate(sizes.precision, machine), Shares()
        if not rate:
            raise SettingsError(f"{machine.name} does not multiply {sizes.precision} weights")
        load = Load(prompt=batch_tokens, output=1, concurrency=seats, batch_tokens=batch_tokens)
        memory = memory_of(sizes, machine, load, shares)
        left = memory.available - memory.total + memory.kv - seats * sizes.state
        if not sizes.kv_per_token:
            raise SettingsError("a model without keys and values cannot be simulated")
        tokens = left // sizes.kv_per_token
        if left < sizes.least_cache:
            raise SettingsError(
                f"{machine.name} has no room for {sizes.precision} weights and the least KV cache: "
                f"{-(left - sizes.least_cache) / 2**30:.1f} GiB are missing"
            )
        rates = Rates.of(sizes, machine, rate * 1e12, shares)
        return cls(machine, rates, seats, batch_tokens, tokens)

    @property
    def longest(self) -> int:
        """Most tokens of a request, prompt and output."""
        return min(self.kv_tokens, self.rates.sizes.max_positions)

    def seconds(self, writing: int, context: float, chunks: Sequence[Chunk]) -> float:
        """Return the time of a step.

        Args:
            writing: sequences of which it computes the next token.
            context: tokens of such a sequence on average.
            chunks: the parts of prompts that it computes, too.
        """
        decode = self._roofline(writing, context, ()) if writing else 0.0
        if not chunks:
            return self.decode_factor * decode
        added = self._roofline(writing, context, chunks) - decode
        return self.decode_factor * decode + self.prompt_factor * added

    def seconds_of_prompt(self, prompt: float, writing: int, context: float) -> float:
        """Return how long a prompt is read, none of which is cached.

        Args:
            prompt: its tokens.
            writing, context: as for :meth:`seconds`: the sequences that decode in the same steps.
        """
        rows = min(max(1, round(prompt)), self.batch_tokens)
        return self.seconds(writing, context, [Chunk(0, rows, True)]) * prompt / rows

    def seconds_of_request(self, prompt: float, output: float) -> float:
        """Return what a request takes of the engine's time while all seats are taken.

        Args:
            prompt: tokens of its prompt, none of them cached.
            output: tokens of its answer.
        """
        context = prompt + output / 2
        step = self.seconds(self.seats, context, ())
        rows = min(max(1, round(prompt)), self.batch_tokens)
        chunk = self.seconds(self.seats, context, [Chunk(0, rows, True)]) - step
        return output * step / self.seats + chunk * prompt / rows

    def _roofline(self, writing: int, context: float, chunks: Sequence[Chunk]) -> float:
        sizes, seen = self.rates.sizes, int(context)
        return self.rates.step(
            rows=writing + sum(chunk.rows for chunk in chunks),
            wanted=writing + sum(chunk.last for chunk in chunks),
            kv=writing * sizes.kv_bytes(seen)
            + sum(sizes.kv_bytes(chunk.first + chunk.rows) for chunk in chunks),
            attention=writing * sizes.attention_operations(seen, 1)
            + sum(sizes.attention_operations(chunk.first, chunk.rows) for chunk in chunks),
        ).seconds
