"""The loop: batches of texts, the loss beside the teacher, the optimiser, and a state to go on from."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from galley.errors import SettingsError
from galley.train.forward import logits_of
from galley.train.loss import cross_entropy, distillation, divergence
from galley.train.student import Student
from galley.train.teacher import TeacherCache

_STATE: Final = "training.pt"
_WARM_UP: Final = 0.05
"""Share of the steps in which the rate rises; then it falls linearly to zero."""

_LEAST_WEIGHT: Final = 1e-6
"""Of a batch: one in which no token counts changes nothing."""

_LIKE: Final = 1.25
"""Texts of a batch differ in length by this factor at most, so little of it is padding."""

_POOL: Final = 64
"""Batches whose texts are sorted by length among themselves."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a student is trained.

    Attributes:
        steps: updates in all.
        batch_tokens: of an update, padding included; a longer text is a batch of its own.
        learning_rate: at its peak.
        temperature: by which the logits of both models are divided.
        kl_weight: share of the teacher in the loss; the rest is the text's own next token.
        top_k: likeliest tokens of the teacher that are kept for each position.
        seed: of the order of texts, and of a new model's weights.
        save_every: steps between two notes of the state.
    """

    steps: int = 1000
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    temperature: float = 1.0
    kl_weight: float = 0.9
    top_k: int = 32
    seed: int = 0
    save_every: int = 100

    def __post_init__(self) -> None:
        if self.learning_rate <= 0 or self.temperature <= 0:
            raise SettingsError("learning rate and temperature must be above 0")
        if not 0 <= self.kl_weight <= 1:
            raise SettingsError(f"kl_weight is {self.kl_weight}, must lie between 0 and 1")


class Example(NamedTuple):
    """A text.

    Attributes:
        tokens: from its beginning.
        weights: of the loss of each token as what follows those before it; None: 1 each.
    """

    tokens: Sequence[int]
    weights: Sequence[float] | None = None


class Loss(NamedTuple):
    """Of a student on texts, by weight: nats a token.

    Attributes:
        cross_entropy: of the text.
        kl: divergence from the teacher at its temperature.
    """

    cross_entropy: float
    kl: float


class Optimiser(Protocol):
    """What updates the parameters it was made for."""

    def step(self, factor: float) -> None:
        """Apply the clipped gradients at ``factor`` of the peak rate, and clear them."""
        ...

    def state(self) -> Any:
        """For :meth:`load`."""
        ...

    def load(self, state: Any) -> None:
        """Continue from what :meth:`state` gave."""
        ...


MakeOptimiser = Callable[[Sequence[tuple[str, Tensor]], float], Optimiser]
"""Of named parameters and the peak rate."""


class AdamW:
    """Decoupled weight decay on matrices (arXiv:1711.05101), gradients clipped to a norm of 1."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], rate: float) -> None:
        self._rate = rate
        self._parameters = [values for _, values in parameters]
        groups = [
            {"params": [p for p in self._parameters if (p.ndim > 1) == decays], "weight_decay": w}
            for decays, w in ((True, 0.01), (False, 0.0))
        ]
        filled = [group for group in groups if group["params"]]
        self._optimiser = torch.optim.AdamW(filled, lr=rate, betas=(0.9, 0.98))

    def step(self, factor: float) -> None:
        """See :class:`Optimiser`."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * factor
        self._optimiser.step()
        self._optimiser.zero_grad()

    def state(self) -> Any:
        """See :class:`Optimiser`."""
        return self._optimiser.state_dict()

    def load(self, state: Any) -> None:
        """See :class:`Optimiser`."""
        self._optimiser.load_state_dict(state)


class Trainer:
    """A student on its way.

    Attributes:
        student: whose parameters change.
        step: updates so far.
    """

    def __init__(
        self,
        student: Student,
        examples: Sequence[Example],
        teacher: TeacherCache,
        options: Options,
        state: Path,
        make_optimiser: MakeOptimiser = AdamW,
    ) -> None:
        """Begin, or go on from the state in its folder.

        Args:
            student: on the device on which it is trained.
            examples: texts of two tokens at least.
            teacher: what it says of the same texts, complete.
            options: how.
            state: folder of the state.
            make_optimiser: of the parameters.
        """
        self.student, self.step = student, 0
        self._examples, self._teacher, self._options = examples, teacher, options
        self._path = state / _STATE
        self._device = next(iter(student.parameters.values())).device
        self._optimiser = make_optimiser(list(student.parameters.items()), options.learning_rate)
        if self._path.exists():
            self._load()

    def run(self, training: Sequence[int], on_step: Callable[[float], None]) -> None:
        """Take the steps that are left.

        Args:
            training: numbers of the texts to train with.
            on_step: told the loss of each step.
        """
        lengths = [len(self._examples[i].tokens) for i in training]
        order = batches(lengths, self._options.batch_tokens, self._options.seed)
        for chosen in itertools.islice(order, self.step, self._options.steps):
            loss = self._train([training[i] for i in chosen])
            self.step += 1
            if self.step % self._options.save_every == 0 or self.step == self._options.steps:
                self._save()
            on_step(loss)

    def _train(self, texts: Sequence[int]) -> float:
        batch = self._batch(texts)
        logits = logits_of(self.student.program, self.student.weights(), batch.ids, batch.wanted)
        losses = distillation(
            logits,
            batch.targets,
            batch.tokens,
            batch.log_probs,
            temperature=self._options.temperature,
            kl_weight=self._options.kl_weight,
        )
        loss = (losses * batch.weights).sum() / batch.weights.sum().clamp(min=_LEAST_WEIGHT)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step(rate_factor(self.step, self._options.steps))
        return float(loss.detach())

    @torch.no_grad()
    def loss(self, texts: Sequence[int]) -> Loss:
        """Of the student as it will be served, on texts of these numbers."""
        sums = torch.zeros(3, dtype=torch.float64)
        weights = self.student.weights(stored=True)
        for text in texts:
            batch = self._batch([text])
            logits = logits_of(self.student.program, weights, batch.ids, batch.wanted)
            temperature = self._options.temperature
            kl = divergence(logits, batch.tokens, batch.log_probs, temperature)
            ce = cross_entropy(logits, batch.targets)
            parts = [(values * batch.weights).sum() for values in (ce, kl, torch.ones_like(kl))]
            sums += torch.stack(parts).double().cpu()
        ce_sum, kl_sum, total = sums.tolist()
        return Loss(ce_sum / total, kl_sum / total)

    def _batch(self, texts: Sequence[int]) -> "_Batch":
        examples = [self._examples[i] for i in texts]
        width = max(len(example.tokens) for example in examples)
        ids = np.zeros((len(texts), width), np.int64)
        weights = np.zeros((len(texts), width), np.float32)
        for row, example in enumerate(examples):
            count = len(example.tokens)
            ids[row, :count] = example.tokens
            # What follows the last token is not known.
            told = example.weights
            weights[row, : count - 1] = 1.0 if told is None else told[1:]
        wanted = weights > 0
        rows = [self._teacher.rows(i) for i in texts]
        lengths = [len(example.tokens) for example in examples]
        kept = [mask[:n] for mask, n in zip(wanted, lengths, strict=True)]
        tokens, log_probs = (
            np.concatenate([r[part][mask] for r, mask in zip(rows, kept, strict=True)])
            for part in (0, 1)
        )
        arrays = (ids, wanted, np.roll(ids, -1, axis=1)[wanted], weights[wanted], tokens, log_probs)
        return _Batch(*(torch.from_numpy(array).to(self._device) for array in arrays))

    def _save(self) -> None:
        """A killed write leaves the old file whole."""
        partial = self._path.with_suffix(".partial")
        parameters = {name: p.detach() for name, p in self.student.parameters.items()}
        state = {"step": self.step, "model": parameters, "optimiser": self._optimiser.state()}
        torch.save(state, partial)
        partial.rename(self._path)

    def _load(self) -> None:
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        self.step = state["step"]
        with torch.no_grad():
            for name, values in state["model"].items():
                self.student.parameters[name].copy_(values)
        self._optimiser.load(state["optimiser"])


class _Batch(NamedTuple):
    """Texts padded to one length, and what is known of the rows that count.

    Attributes:
        ids: [texts, tokens].
        wanted: [texts, tokens] which rows count.
        targets: [rows] the tokens that follow them.
        weights: [rows] of their losses.
        tokens: [rows, k] the teacher's likeliest.
        log_probs: [rows, k] the teacher's.
    """

    ids: Tensor
    wanted: Tensor
    targets: Tensor
    weights: Tensor
    tokens: Tensor
    log_probs: Tensor


def rate_factor(step: int, steps: int) -> float:
    """Share of the peak rate."""
    warm_up = max(1, round(_WARM_UP * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))


def batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> Iterator[list[int]]:
    """Numbers of texts, for ever: every text once before any comes again, in another order each time.

    A batch has texts of similar length, ``batch_tokens`` with their padding at most.
    """
    for epoch in itertools.count():
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(lengths)).tolist()
        pool: list[int] = []
        room = _POOL * batch_tokens
        for number, text in enumerate(order, 1):
            pool.append(text)
            room -= lengths[text]
            if room <= 0 or number == len(order):
                made = list(_cut(sorted(pool, key=lambda i: lengths[i]), lengths, batch_tokens))
                yield from (made[i] for i in random.permutation(len(made)))
                pool, room = [], _POOL * batch_tokens


def _cut(texts: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """``texts`` by length, shortest first."""
    batch: list[int] = []
    for text in texts:
        width = lengths[text]
        full = (len(batch) + 1) * width > batch_tokens
        if batch and (full or width > _LIKE * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def told(options: Options) -> str:
    """All of the options but how often the state is saved, the same for equal ones."""
    return repr(dataclasses.replace(options, save_every=0))
