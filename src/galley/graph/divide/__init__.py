"""Divide a program among ranks that compute it together (tensor parallelism), without changing a bit.

Every matrix is divided by its outputs, never along its inputs: a rank multiplies whole rows of inputs, so
each output is the same sum in the same order as in one process. ``all_gather`` puts the columns of all
ranks side by side where the next op reads a whole row. In the terms of Megatron-LM and vLLM, all layers are
column-parallel: an all-gather before ``o_proj`` and ``down`` replaces the all-reduce after row-parallel
ones, whose sums would depend on the number of ranks.

    q, k, v (own heads) -> attention (own heads) | gather -> o_proj (own rows) | gather -> add, norm (all)
    gate, up (own rows) -> silu_mul (own columns) | gather -> down (own rows)  | gather -> add, norm (all)
    logits (own rows)   | gather at rank 0
"""

from galley.graph.divide.divide import Divided, divide

__all__ = ["Divided", "divide"]
