"""The training loop: batches of texts, the loss against the teacher, the optimizer, and resumable state."""

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
from galley.files import complete_or_absent
from galley.train.forward import logits_of
from galley.train.loss import cross_entropy, distillation, divergence
from galley.train.student import Student
from galley.train.teacher import TeacherCache

_STATE: Final = "training.pt"
_WARM_UP: Final = 0.05
"""Share of the steps in which the learning rate rises; then it falls linearly to zero."""

_LEAST_WEIGHT: Final = 1e-6
"""Minimum weight of a batch, so that one in which no token counts changes nothing."""

_LIKE: Final = 1.25
"""Maximum ratio of the lengths of texts in a batch, which keeps padding small."""

_POOL: Final = 64
"""Number of batches whose texts are sorted by length as one group."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a student is trained.

    Attributes:
        steps: total number of updates.
        batch_tokens: tokens of an update, padding included; a longer text is a batch of its own.
        learning_rate: the peak learning rate.
        temperature: the divisor of the logits of both models.
        kl_weight: share of the teacher in the loss; the rest is the text's next token.
        top_k: number of the teacher's likeliest tokens that are kept for each position.
        seed: seed of the order of texts, and of a new model's weights.
        save_every: number of steps between two saves of the state.
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
            raise SettingsError(f"kl_weight is {self.kl_weight}, must be between 0 and 1")


class Example(NamedTuple):
    """A text.

    Attributes:
        tokens: the tokens from its beginning.
        weights: weight of the loss of predicting each token from those before it; None: 1 each.
    """

    tokens: Sequence[int]
    weights: Sequence[float] | None = None


class Loss(NamedTuple):
    """The weighted loss of a student on texts, in nats per token.

    Attributes:
        cross_entropy: cross-entropy with the text.
        kl: divergence from the teacher at its temperature.
    """

    cross_entropy: float
    kl: float


class Optimizer(Protocol):
    """Updates the parameters it was created for."""

    def step(self, factor: float) -> None:
        """Apply the clipped gradients at ``factor`` of the peak rate, and clear them."""
        ...

    def state(self) -> Any:
        """Return the state for :meth:`load`."""
        ...

    def load(self, state: Any) -> None:
        """Continue from the result of :meth:`state`."""
        ...


MakeOptimizer = Callable[[Sequence[tuple[str, Tensor]], float], Optimizer]
"""Creates an optimizer from named parameters and the peak rate."""


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
        self._optimizer = torch.optim.AdamW(filled, lr=rate, betas=(0.9, 0.98))

    def step(self, factor: float) -> None:
        """Apply and clear the gradients: see :class:`Optimizer`."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * factor
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state(self) -> Any:
        """Return the state: see :class:`Optimizer`."""
        return self._optimizer.state_dict()

    def load(self, state: Any) -> None:
        """Continue from a state: see :class:`Optimizer`."""
        self._optimizer.load_state_dict(state)


class Trainer:
    """A student in training.

    Attributes:
        student: the student whose parameters change.
        step: number of updates so far.
    """

    def __init__(
        self,
        student: Student,
        examples: Sequence[Example],
        teacher: TeacherCache,
        options: Options,
        state: Path,
        make_optimizer: MakeOptimizer = AdamW,
    ) -> None:
        """Begin, or continue from the state in its folder.

        Args:
            student: the student, on the device on which it is trained.
            examples: texts of at least two tokens.
            teacher: the teacher's results for the same texts, complete.
            options: how to train.
            state: folder of the state.
            make_optimizer: creates the optimizer of the parameters.
        """
        self.student, self.step = student, 0
        self._examples, self._teacher, self._options = examples, teacher, options
        self._path = state / _STATE
        self._device = next(iter(student.parameters.values())).device
        self._optimizer = make_optimizer(list(student.parameters.items()), options.learning_rate)
        if self._path.exists():
            self._load()

    def run(self, training: Sequence[int], on_step: Callable[[float], None]) -> None:
        """Take the remaining steps.

        Args:
            training: numbers of the texts to train with.
            on_step: called with the loss of each step.
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
        self._optimizer.step(rate_factor(self.step, self._options.steps))
        return float(loss.detach())

    @torch.no_grad()
    def loss(self, texts: Sequence[int]) -> Loss:
        """Return the loss of the student as it will be served, on texts of these numbers."""
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
            # The last token has no known successor.
            token_weights = example.weights
            weights[row, : count - 1] = 1.0 if token_weights is None else token_weights[1:]
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
        """Save the state atomically: a killed write leaves the old file whole."""
        parameters = {name: p.detach() for name, p in self.student.parameters.items()}
        state = {"step": self.step, "model": parameters, "optimizer": self._optimizer.state()}
        with complete_or_absent(self._path) as partial:
            torch.save(state, partial)

    def _load(self) -> None:
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        self.step = state["step"]
        with torch.no_grad():
            for name, values in state["model"].items():
                self.student.parameters[name].copy_(values)
        self._optimizer.load(state["optimizer"])


class _Batch(NamedTuple):
    """Texts padded to one length, and the data of the rows that count.

    Attributes:
        ids: [texts, tokens].
        wanted: [texts, tokens] which rows count.
        targets: [rows] the tokens that follow them.
        weights: [rows] weights of their losses.
        tokens: [rows, k] the teacher's likeliest tokens.
        log_probs: [rows, k] the teacher's log-probabilities.
    """

    ids: Tensor
    wanted: Tensor
    targets: Tensor
    weights: Tensor
    tokens: Tensor
    log_probs: Tensor


def rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak rate in a step."""
    warm_up = max(1, round(_WARM_UP * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))


def batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of text numbers endlessly: every text once per epoch, in another order each time.

    A batch has texts of similar length, with at most ``batch_tokens`` tokens including padding.
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
    """Yield batches of ``texts``, which are sorted by length, shortest first."""
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


def fingerprint(options: Options) -> str:
    """Return a text of all options except ``save_every``, the same for equal options."""
    return repr(dataclasses.replace(options, save_every=0))
