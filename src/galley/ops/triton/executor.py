"""The GPU executor: Triton kernels on a ragged batch, captured as CUDA graphs if every row decodes."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt
import torch

from galley.errors import SettingsError
from galley.formats.adapter import AdapterWeights
from galley.formats.weights import Kinds, Weights
from galley.graph.passes import run_passes
from galley.graph.program import Program
from galley.machine import bytes_text
from galley.ops.batch import Batch
from galley.ops.draws import draw_all
from galley.ops.executor import ExecutorMemory, ExecutorOptions, ExpertCounts, Submitted
from galley.ops.key_factors import key_factors
from galley.ops.kinds import kinds_text, own_kinds, plan_kinds
from galley.ops.sampling import SamplingBatch, StepResult, sample
from galley.ops.triton.adapters import Adapters, PackedAdapter, adapter_bytes
from galley.ops.triton.attention import new_cache, rows_of_tiles
from galley.ops.triton.graphs import DecodeGraphs
from galley.ops.triton.parts import Parts
from galley.ops.triton.sampler import Draws, draw, drawn_on_device
from galley.ops.triton.sizes import (
    ACTIVATIONS,
    CACHES,
    KV_BITS,
    encoder_bytes,
    expert_costs,
    gathered_logit_bytes,
    kv_block_bytes,
    read_bytes,
    row_bytes,
    scratch_bytes,
    weight_bytes,
)
from galley.ops.triton.speech import Speech
from galley.ops.triton.step_batch import Staging, shape_of, tiles_of
from galley.ops.triton.steps import Steps
from galley.ops.triton.supported import check_program
from galley.ops.triton.tiles import INTERPRETED, Device, check_capability, device_of
from galley.types import BLOCK_TOKENS
from galley.types.model_info import StepCosts

if TYPE_CHECKING:
    from galley.ops.communicator import Communicator
    from galley.ops.triton.ranks import TensorRanks

_DEVICE_RESERVE: Final = 512 << 20
"""Bytes reserved for the driver, the allocator's rounding and captured graphs."""

_NCCL_RESERVE: Final = 512 << 20
"""Bytes reserved for NCCL's buffers, where the model is divided. They have not been measured."""


@dataclass(slots=True)
class _Running:
    """A step on the device.

    Attributes:
        sampling: what is requested of it.
        began: when it was submitted, on the clock of ``time.perf_counter``.
        logits: [wanted, vocab]; None without token rows.
        draws: the draws on the device; None if tokens are drawn on the host, or there are none.
        tokens: [draws] the target of the copy of the drawn ids to the host.
        done: completes with the step.
        encoded, attention: see :class:`galley.ops.sampling.StepResult`.
    """

    sampling: SamplingBatch
    began: float
    logits: torch.Tensor | None = None
    draws: Draws | None = None
    tokens: torch.Tensor | None = None
    done: "torch.cuda.Event | None" = None
    encoded: npt.NDArray[np.float32] | None = None
    attention: npt.NDArray[np.float32] | None = None


class TritonExecutor:
    """See :class:`galley.ops.executor.Executor` and :class:`galley.ops.executor.FollowingExecutor`.

    Rows between ops have the activations' type. Products are accumulated, and norms, softmax and rotation
    computed, in float32. Logits are float32.
    """

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        traced = program
        device, program, dtype = _planned(program, weights, options)
        self._kv_bits = KV_BITS.get(options.kv_dtype, 0)
        self._factors = key_factors(traced, weights) if self._kv_bits == 4 else []
        self.activations = options_activations(options)
        self._device, self._program, self._kv_dtype = device, program, options.kv_dtype
        self._ranks = _ranks(options, device)
        self._pause = options.pause
        self.kv_groups = len(program.kv_groups)
        adapters = None
        if options.adapters:
            adapters = Adapters(program, options.adapters, options.adapter_rank, dtype, device)
        self.steps = Steps(
            Parts(
                program,
                weights,
                dtype,
                device,
                kv_bits=self._kv_bits,
                adapters=adapters,
                ranks=self._ranks,
            )
        )
        self._speech = None if program.encoder is None else Speech(program, self.steps.parts)
        self._rows_of_tiles = rows_of_tiles(program, device)
        self._graphs = DecodeGraphs(self.steps, self.kv_groups, device, self._ranks)
        self._collected = 0.0
        """When the last step was collected."""
        self.forward_seconds = self.sample_seconds = 0.0

    @staticmethod
    def memory(program: Program, weights: Weights, options: ExecutorOptions) -> ExecutorMemory:
        """See :meth:`galley.ops.executor.ExecutorFactory.memory`."""
        device, program, dtype = _planned(program, weights, options)
        free = None
        if device.torch.type == "cuda":
            reserve = _DEVICE_RESERVE + (_NCCL_RESERVE if options.ranks > 1 else 0)
            free = max(0, torch.cuda.mem_get_info(device.torch)[0] - reserve)
        return ExecutorMemory(
            isa="",
            activations=options_activations(options),
            kinds=kinds_text(program, program.kinds),
            weights=weight_bytes(program, dtype),
            kv_block=kv_block_bytes(program, options.kv_dtype),
            row=row_bytes(program, dtype),
            logits=8 * program.vocab_size + gathered_logit_bytes(program),
            encoder=encoder_bytes(program, dtype),
            scratch=scratch_bytes(program, dtype),
            adapters=options.adapters * adapter_bytes(program, options.adapter_rank, dtype),
            free=free,
        )

    @staticmethod
    def check_capability(name: str) -> None:
        """See :class:`galley.ops.executor.CapabilityChecking`."""
        check_capability(name)

    @staticmethod
    def check_devices(names: Sequence[str]) -> None:
        """See :class:`galley.ops.executor.DeviceChecking`."""
        if not INTERPRETED:
            from galley.ops.triton.ranks import check_gpus

            check_gpus(names)

    def close(self) -> None:
        """See :class:`galley.ops.executor.Closable`."""
        if self._ranks is not None:
            self._ranks.close()

    def step_costs(self) -> StepCosts:
        """See :meth:`galley.ops.executor.Executor.step_costs`."""
        row_operations, logit_operations = self._program.operations()
        return StepCosts(
            weight_bytes=read_bytes(self._program, self.steps.parts.dtype),
            kv_bytes_per_token=self.kv_bytes_per_block() // BLOCK_TOKENS,
            row_operations=row_operations,
            logit_operations=logit_operations,
            experts=expert_costs(self._program, self.steps.parts.dtype),
        )

    def expert_counts(self) -> ExpertCounts:
        """See :meth:`galley.ops.executor.Executor.expert_counts`."""
        return ExpertCounts()

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a block over all layers."""
        return kv_block_bytes(self._program, self._kv_dtype)

    def bytes_per_state(self) -> int:
        """Return 0: this executor has no recurrent models."""
        return 0

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Allocate the caches of all layers.

        Raises:
            SettingsError: the device has too little memory left.
        """
        self.steps.blocks = blocks
        try:
            for layer, kv in enumerate(self._program.kv):
                factors = self._factors[layer] if self._factors else None
                made = new_cache(kv, blocks, CACHES[self._kv_dtype], factors, self._device)
                self.steps.parts.caches.append(made)
        except torch.OutOfMemoryError as error:
            needed = bytes_text(blocks * self.kv_bytes_per_block())
            raise SettingsError(
                f"keys and values need {needed}, more than {self._device.name} has left ({error}); set "
                "kv_cache_tokens to a smaller number"
            ) from error

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """See :meth:`galley.ops.executor.Executor.pack_adapter`."""
        adapters = self.steps.parts.adapters
        assert adapters is not None
        return adapters.pack(adapter)

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """See :meth:`galley.ops.executor.Executor.set_adapter`."""
        adapters = self.steps.parts.adapters
        assert adapters is not None
        adapters.set(slot, cast(PackedAdapter, packed or ()))

    @torch.inference_mode()
    def submit(self, batch: Batch, sampling: SamplingBatch) -> Submitted:
        """See :meth:`galley.ops.executor.Executor.submit`."""
        running = _Running(sampling, time.perf_counter())
        if self._pause is not None:
            self._pause()
        with self._device.current():
            if batch.copies:
                self._copy_blocks(batch.copies)
            if self._speech is not None and batch.encode is not None:
                running.encoded = self._speech.encode(batch.encode, self.steps.blocks)
            if self._speech is not None and batch.align is not None:
                running.attention = self._speech.align(batch.align, self.steps.blocks)
            if len(batch.tokens):
                self._launch(running, batch)
            running.done = self._device.mark()
        return running

    @torch.inference_mode()
    def follow(self, step: Submitted, batch: Batch, sampling: SamplingBatch) -> Submitted | None:
        """See :meth:`galley.ops.executor.FollowingExecutor.follow`."""
        assert isinstance(step, _Running)
        if step.draws is None:
            return None
        running = _Running(sampling, time.perf_counter())
        with self._device.current():
            self._launch(running, batch, step.draws.tokens)
            running.done = self._device.mark()
        return running

    def may_follow(self, step: Submitted) -> bool:
        """See :meth:`galley.ops.executor.FollowingExecutor.may_follow`."""
        assert isinstance(step, _Running)
        return step.draws is not None

    def _launch(self, running: _Running, batch: Batch, drawn: torch.Tensor | None = None) -> None:
        """Launch the rows and the draws of a step; ``drawn`` are the tokens of the step before it."""
        sampling = running.sampling
        on_device = drawn_on_device(sampling)
        if self._graphs.takes(batch):
            found = self._graphs.run(batch, sampling if on_device else None, drawn)
            running.logits, running.draws = found
        else:
            single, tiles = tiles_of(batch, self._rows_of_tiles)
            staging = Staging(
                shape_of(batch, single, tiles),
                self.kv_groups,
                self._device,
                self.steps.blocks,
                self._ranks,
            )
            running.logits = self.steps.run(staging.fill(batch, single, tiles, drawn))
        if on_device and sampling.rows:
            if running.draws is None:
                running.draws = draw(running.logits, sampling, self._device)
            running.tokens = running.draws.start_copy()
        running.logits = running.logits[: len(batch.wanted)]

    @torch.inference_mode()
    def collect(self, step: Submitted) -> StepResult:
        """See :meth:`galley.ops.executor.Executor.collect`."""
        assert isinstance(step, _Running)
        if step.done is not None and self._ranks is not None:
            self._ranks.wait(step.done)
        elif step.done is not None:
            step.done.synchronize()
        began = time.perf_counter()
        result = StepResult()
        if step.tokens is not None:
            result.tokens = step.tokens[: len(step.sampling.rows)].tolist()
        elif step.logits is not None and not drawn_on_device(step.sampling):
            found = step.logits.to("cpu", torch.float32).numpy()
            result = sample(found, step.sampling, draw_all)
        result.encoded, result.attention = step.encoded, step.attention
        now = time.perf_counter()
        self.sample_seconds += now - began
        self.forward_seconds += now - max(step.began, self._collected)
        self._collected = now
        return result

    def _copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the blocks in every layer's cache."""
        sources, targets = (list(blocks) for blocks in zip(*copies, strict=True))
        for cache in self.steps.parts.caches:
            for part in dict.fromkeys(
                (cache.keys, cache.values, cache.key_scales, cache.value_scales)
            ):
                part[targets] = part[sources]


def options_activations(options: ExecutorOptions) -> str:
    """Return the type of rows between ops: "float32", "bfloat16" or "float16".

    With "auto", that is the type of dense weights, or bfloat16 for quantized ones.

    Raises:
        SettingsError: the executor has no such activations.
    """
    if options.activations == "auto":
        return {"float32": "float32", "f16": "float16"}.get(options.weight_dtype, "bfloat16")
    if options.activations not in ACTIVATIONS:
        raise SettingsError(
            f"activations is {options.activations!r}, but executor 'gpu' computes with "
            f"{', '.join(ACTIVATIONS)}; leave it out, or use executor cpu"
        )
    return options.activations


def _planned(
    program: Program, weights: Weights, options: ExecutorOptions
) -> tuple[Device, Program, torch.dtype]:
    """Return the device, the program after all passes, and the type of its rows.

    Raises:
        SettingsError: the executor does not support the options.
        UnsupportedModel: there is no kernel for the program.
    """
    device = _device(options.device)
    if options.experts != "memory":
        raise SettingsError(
            f"experts is {options.experts!r}, but executor 'gpu' keeps them in memory; leave it out, or "
            "use executor cpu"
        )
    if options.kv_dtype not in CACHES:
        raise SettingsError(
            f"kv_dtype is {options.kv_dtype!r}, but executor 'gpu' keeps keys and values as "
            f"{', '.join(CACHES)}; leave it out, or use executor cpu"
        )
    if options.kv_dtype == "int4" and any(kv.shared for kv in program.kv):
        raise SettingsError(
            "kv_dtype is 'int4', but executor 'gpu' keeps the latents of this model's attention as "
            f"{', '.join(name for name in CACHES if name != 'int4')}; leave it out, or use executor cpu"
        )
    kinds: Kinds = plan_kinds(
        program, options.weight_dtype, own=own_kinds(program, weights), chosen=options.kinds
    )
    check_program(program)
    program = program.with_kinds(kinds)
    encoder, aligner = (
        None if one is None else run_passes(one, options.disable_pass)
        for one in (program.encoder, program.aligner)
    )
    program = run_passes(program, options.disable_pass)
    program = dataclasses.replace(program, encoder=encoder, aligner=aligner)
    return device, program, ACTIVATIONS[options_activations(options)]


def _ranks(options: ExecutorOptions, device: Device) -> "TensorRanks | None":
    """Return what exchanges rows with the other ranks; None if there are none.

    Raises:
        SettingsError: torch has no NCCL.
    """
    if options.communicator is None:
        return None
    from galley.ops.triton.ranks import TensorRanks

    return TensorRanks(cast("Communicator", options.communicator), options.meeting, device)


def _device(name: str) -> Device:
    """Return the device of this name; raise SettingsError if kernels cannot run on it."""
    kind = name.partition(":")[0]
    if INTERPRETED:
        return Device("cpu", 0)
    if kind != "cuda":
        raise SettingsError(
            f"device is {name!r}, but executor 'gpu' needs a GPU; set device to cuda, or to cuda:1 for the "
            "second one"
        )
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"cannot use device {name!r}: {error}") from error
    return device_of(name)
