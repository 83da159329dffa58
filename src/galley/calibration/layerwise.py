"""A model run a slice at a time over all texts at once: only a slice's weights are in memory.

A buffer that linear layers read, that several ops read, or that holds the routes of experts, is *kept*: its
rows for all tokens are an array.
A slice is a separate program from kept buffers to the next one. It reads kept buffers with the op
``embed``: their rows are its table, and the tokens of its batch are row numbers.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np

from galley.formats.weights import DENSE_KINDS, DenseWeight, Floats, LoadedWeights, Weight, Weights
from galley.graph.program import Op, Program
from galley.ops.batch import Batch, Ints
from galley.ops.executor import ExecutorFactory, ExecutorOptions, forward
from galley.ops.kinds import takes_inputs
from galley.ops.sampling import Logits
from galley.types import blocks_for

_STEP_ROWS: Final = 2048
"""Rows per step, but at least one whole text."""

_TABLE: Final = "buffer "
"""Prefix of the name of a kept buffer's table."""

LOGIT_ROWS: Final = 128
"""Rows per step whose logits are computed: each row spans the whole vocabulary."""


class Layerwise:
    """Runs a program over texts. Slices are run in order; later ones see weights that were replaced.

    Attributes:
        program: of the model, as traced.
        kept: the kept buffers, in the order in which they are computed; the logits are not one of them.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        windows: Sequence[Sequence[int]],
        factory: ExecutorFactory,
        options: ExecutorOptions,
        *,
        weight_dtype: str | None = None,
        inputs: str | None = None,
    ) -> None:
        """Prepare the run without computing anything yet.

        Args:
            program: of a text model.
            weights: its tensors.
            windows: token ids; each begins a text.
            factory: factory of the executor that runs slices.
            options: options of that executor, except weight types.
            weight_dtype: weight type of dense matrices; None: exactly their own.
            inputs: type to which inputs of integer matrices are rounded; None: they stay floats.
        """
        self.program = program
        self._weights = weights
        self._factory = factory
        self._weight_dtype = weight_dtype
        self._inputs = inputs
        self._options = dataclasses.replace(options, weight_cache=None, pause=None)
        self._ids: Ints = np.concatenate([np.asarray(w, dtype=np.int64) for w in windows])
        self._lengths = [len(window) for window in windows]
        self._replaced: dict[str, Weight] = {}
        self._values: dict[int, Floats] = {}
        self._done = 0
        self._writer = {b: i for i, op in enumerate(program.ops) for b in op.outputs}
        self.kept = tuple(_kept(program))
        self._sources = {b: self._slice(b)[1] for b in (*self.kept, self._logits)}

    @property
    def _logits(self) -> int:
        return self.program.ops[-1].output

    @property
    def tokens(self) -> int:
        """Rows of every kept buffer."""
        return len(self._ids)

    def linears(self, buffer: int) -> list[Op]:
        """Return the linear layers that read a buffer."""
        return [self.program.ops[i] for i in self.program.readers()[buffer] if self._is_linear(i)]

    def experts(self, routes: int) -> Op | None:
        """Return the op that runs experts by these routes; None if the buffer holds no routes."""
        readers = [self.program.ops[i] for i in self.program.readers()[routes]]
        return next((op for op in readers if op.name == "experts" and op.inputs[1] == routes), None)

    def _is_linear(self, i: int) -> bool:
        return self.program.ops[i].name == "linear"

    def replace(self, weight: Weight) -> None:
        """Use this tensor instead of the checkpoint's of the same name in all later slices."""
        self._replaced[weight.name] = weight

    def advance(self, buffer: int) -> Floats:
        """Compute kept buffers up to this one, and return it: [tokens, width].

        Arrays that no later slice reads are freed.
        """
        for each in self.kept[self._done : self.kept.index(buffer) + 1]:
            rows = np.concatenate(list(self._run(each, text_steps(self._lengths, _STEP_ROWS))))
            self._values[each] = rows
            self._done += 1
            self._free()
        return self._values[buffer]

    def fork(self) -> Self:
        """Return an independent run that continues from here: its replacements do not affect this one."""
        other = copy.copy(self)
        other._replaced = dict(self._replaced)
        other._values = dict(self._values)
        return other

    def rest(self) -> Self:
        """Return another run, which continues from here to the logits in one slice, all of it in memory."""
        other = self.fork()
        other.kept = tuple(buffer for buffer in self.kept if buffer in self._values)
        return other

    def skip_past(self, buffer: int, values: Mapping[int, Floats]) -> None:
        """Continue after a kept buffer; ``values``: as they were when that had been computed."""
        self._done = self.kept.index(buffer) + 1
        self._values = dict(values)

    @property
    def values(self) -> Mapping[int, Floats]:
        """The arrays that later slices read."""
        return self._values

    def logits(self) -> Iterator[tuple[int, Logits]]:
        """Yield (first row, logits [rows, vocab]) a piece at a time, when all buffers have been computed.

        The array is valid until the next piece.
        """
        first = 0
        for logits in self._run(self._logits, text_steps(self._lengths, LOGIT_ROWS)):
            yield first, logits
            first += len(logits)

    def _free(self) -> None:
        later = (*self.kept[self._done :], self._logits)
        needed = {source for buffer in later for source in self._sources[buffer]}
        self._values = {b: rows for b, rows in self._values.items() if b in needed}

    def _slice(self, target: int) -> tuple[list[Op], list[int]]:
        """Return the ops that compute ``target`` from kept buffers, and these buffers."""
        ops: list[int] = []
        sources: set[int] = set()
        todo = [target]
        while todo:
            i = self._writer[todo.pop()]
            if i in ops:
                continue
            ops.append(i)
            for b in self.program.ops[i].inputs:
                if b in self.kept:
                    sources.add(b)
                else:
                    todo.append(b)
        return [self.program.ops[i] for i in sorted(ops)], sorted(sources)

    def _run(self, target: int, steps: list[tuple[int, list[int]]]) -> Iterator[Floats]:
        """Yield the rows of ``target``, a step at a time."""
        ops, sources = self._slice(target)
        program, tensors = self._sliced(ops, sources, target)
        kinds = self._kinds(program, tensors)
        held = {kinds.get(name, tensors[name].kind.name) for name in program.matrices}
        inputs = self._activations(tensors)
        options = dataclasses.replace(
            self._options,
            kinds=kinds,
            # A slice may have no matrix that supports the input type requested for the whole model.
            activations=inputs if takes_inputs(held, inputs) else "auto",
        )
        executor = self._factory(program, LoadedWeights(tensors), options)
        blocks = max(sum(map(blocks_for, lengths)) for _, lengths in steps)
        texts = max(len(lengths) for _, lengths in steps)
        executor.allocate_kv(blocks * len(program.kv_groups), states=texts)
        tokens = np.arange(self.tokens, dtype=np.int64) if sources else self._ids
        groups = len(program.kv_groups)
        for first, lengths in steps:
            rows = tokens[first : first + sum(lengths)]
            yield forward(executor, text_batch(rows, lengths, groups)).copy()

    def _activations(self, tensors: Mapping[str, Weight]) -> str:
        """Return the input type: the default of integers would round inputs, which adds another loss."""
        if self._weight_dtype is not None or all(
            isinstance(w, DenseWeight) for w in tensors.values()
        ):
            return self._options.activations
        return self._inputs or self._options.dtype

    def _kinds(self, program: Program, tensors: Mapping[str, Weight]) -> dict[str, str]:
        """Return the weight types of a slice's dense matrices: their own, unless another is requested."""
        kinds = {}
        for name in program.matrices:
            weight = tensors[name]
            if isinstance(weight, DenseWeight):
                exact = "bf16" if weight.kind == DENSE_KINDS["BF16"] else "float32"
                table = name.startswith(_TABLE)
                kinds[name] = exact if table or self._weight_dtype is None else self._weight_dtype
        return kinds

    def _sliced(
        self, ops: list[Op], sources: list[int], target: int
    ) -> tuple[Program, dict[str, Weight]]:
        widths = self.program.widths()
        tables = {b: f"{_TABLE}{b}" for b in sources}
        shapes: dict[str, tuple[int, ...]] = {
            name: (self.tokens, widths[b]) for b, name in tables.items()
        }
        tensors: dict[str, Weight] = {}
        for b, name in tables.items():
            rows = np.ascontiguousarray(self._values[b])
            tensors[name] = DenseWeight(name, "F32", shapes[name], _raw(rows))
        layers: dict[int, int] = {}
        states: dict[int, int] = {}
        moved = []
        for op in ops:
            for attr, numbers in (("layer", layers), ("state", states)):
                if attr in op.attrs:
                    number = numbers.setdefault(op.attrs[attr], len(numbers))
                    op = dataclasses.replace(op, attrs={**op.attrs, attr: number})
            moved.append(op)
            for names in op.weights.values():
                for name in names:
                    tensors[name] = self._replaced.get(name) or self._weights[name]
                    shapes[name] = self.program.shapes[name]
        reads = [
            Op("embed", (), (b,), (widths[b],), {"weight": (name,)}, {})
            for b, name in tables.items()
        ]
        end = self.program.new_buffer()
        out = Op("select_rows", (target,), (end,), (widths[target],), {}, {})
        empty = dataclasses.replace(
            self.program,
            # A batch has a table for each text, even if nothing attends.
            kv=tuple(self.program.kv[layer] for layer in layers) or self.program.kv[:1],
            states=tuple(self.program.states[state] for state in states),
            shapes=shapes,
            vocab_size=widths[target],
            kinds={},
        )
        return empty.with_ops([*reads, *moved, out]), tensors


def text_steps(lengths: Sequence[int], most: int) -> list[tuple[int, list[int]]]:
    """Divide texts into steps of whole texts, ``most`` rows at most, or one text.

    Returns:
        (first row, lengths of texts) of each step.
    """
    steps: list[tuple[int, list[int]]] = []
    taken: list[int] = []
    first = 0
    for length in lengths:
        if taken and sum(taken) + length > most:
            steps.append((first, taken))
            first += sum(taken)
            taken = []
        taken.append(length)
    return [*steps, (first, taken)]


def _kept(program: Program) -> Iterator[int]:
    readers = program.readers()
    for op in program.ops[:-1]:
        for b in op.outputs:
            linear = any(program.ops[i].name == "linear" for i in readers[b])
            if linear or len(readers[b]) > 1 or not op.inputs or op.name == "route":
                yield b


def text_batch(tokens: Ints, lengths: Sequence[int], groups: int) -> Batch:
    """Return a batch of whole texts, all rows wanted; their KV blocks are the first of the pool.

    Args:
        tokens: of all texts, one after another.
        lengths: of each.
        groups: KV groups of the executor.
    """
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    ends = np.cumsum([0, *map(blocks_for, lengths)])
    tables = tuple(
        np.arange(ends[s], ends[s + 1], dtype=np.int64) + group * ends[-1]
        for group in range(groups)
        for s in range(len(lengths))
    )
    return Batch(tokens, positions, starts, tables, np.arange(len(tokens), dtype=np.int64))


def _raw(values: Floats) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return values.reshape(-1).view(np.uint8)
