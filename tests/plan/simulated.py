"""An engine and requests for simulations."""

from galley.models.registry import build_program
from galley.plan.cluster.engine import Engine
from galley.plan.cluster.traffic import Traffic
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Rates, Shares
from galley.traffic.trace import TraceLine, Turn
from tests.plan.shapes import LLAMA_7B, MACHINE

SIZES = ModelSizes.of(build_program(LLAMA_7B), "bf16", "bfloat16")


def engine(seats: int = 64, kv_tokens: int = 100_000, batch_tokens: int = 512) -> Engine:
    rates = Rates.of(SIZES, MACHINE, MACHINE.tflops["bfloat16"] * 1e12, Shares())
    return Engine(MACHINE, rates, seats, batch_tokens, kv_tokens)


def turns(*requests: tuple[float, int, int]) -> Traffic:
    """Return requests that share nothing: (due, tokens of the prompt, of the answer)."""
    return Traffic(
        [
            Turn(
                due, None, 0.0, TraceLine(timestamp=due, input_length=prompt, output_length=output)
            )
            for due, prompt, output in requests
        ]
    )
