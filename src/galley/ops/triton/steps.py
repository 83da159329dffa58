"""Turn a program's ops into launches: each op becomes a function that the executor calls in every step."""

from collections.abc import Callable, Mapping
from typing import Final

import torch

from galley.graph.program import Op
from galley.ops.triton import attention_steps, expert_steps, rank_steps, row_steps, speech_steps
from galley.ops.triton.parts import Parts, Run, Step
from galley.ops.triton.step_batch import StepBatch
from galley.ops.triton.supported import ELEMENTWISE, check_program, gated_linears

_BUILDERS: Final[Mapping[str, Callable[[Parts, Op], Step]]] = {
    "embed": row_steps.embed,
    "embed_part": rank_steps.embed_part,
    "all_gather": rank_steps.all_gather,
    "embed_positions": row_steps.embed_positions,
    "embed_types": row_steps.embed_types,
    "linear": row_steps.linear,
    "rms_norm": row_steps.norm,
    "add_rms_norm": row_steps.norm,
    "layer_norm": row_steps.norm,
    "add_layer_norm": row_steps.norm,
    "select_rows": row_steps.select_rows,
    "columns": row_steps.columns,
    "head_columns": row_steps.head_columns,
    **dict.fromkeys(ELEMENTWISE, row_steps.elementwise),
    "rope": attention_steps.rope,
    "attention": attention_steps.attention,
    "rope_attention": attention_steps.attention,
    "encoder_attention": attention_steps.encoder_attention,
    "route": expert_steps.route,
    "experts": expert_steps.experts,
    "lora": expert_steps.lora,
    "head_linear": expert_steps.head_linear,
    "join_heads": expert_steps.join_heads,
    "features": speech_steps.features,
    "im2col": speech_steps.im2col,
    "encoder_rows": speech_steps.encoder_rows,
    "cross_kv": speech_steps.cross_kv,
    "cross_attention": speech_steps.cross_attention,
    "cross_weights": speech_steps.cross_weights,
}


class Steps:
    """The launches of a program, with the packed weights that they need."""

    def __init__(self, parts: Parts) -> None:
        """Build the launches of the program of ``parts``.

        Raises:
            UnsupportedModel: an op has no kernel, or a tensor has a type that no kernel reads.
        """
        program = parts.program
        check_program(program)
        self.parts, self.blocks = parts, 0
        fused, fused_inputs = gated_linears(program)
        planned: list[tuple[Step, tuple[int, ...]]] = []
        for op in program.ops:
            if op.outputs and (linear := fused.get(op.outputs[0])):
                step = row_steps.linear(parts, linear, gated=op.output)
                planned.append((step, linear.inputs))
            elif fused_inputs.isdisjoint(op.outputs):
                planned.append((_BUILDERS[op.name](parts, op), op.inputs))
        last_use = {b: i for i, (_, inputs) in enumerate(planned) for b in inputs}
        self.steps = [
            (step, tuple(b for b in dict.fromkeys(inputs) if last_use[b] == i))
            for i, (step, inputs) in enumerate(planned)
        ]
        self.weight_bytes = sum(matrix.nbytes for matrix in parts.matrices.values())
        self.weight_bytes += sum(layer.nbytes for layer in parts.expert_layers)

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Run all ops on the batch and return the last op's result."""
        run = Run(batch, batch.slots)
        self.launch(run)
        return run.buffers[self.parts.program.ops[-1].outputs[-1]]

    def launch(self, run: Run) -> None:
        """Run all ops."""
        for step, done in self.steps:
            step(run)
            for b in done:
                del run.buffers[b]
