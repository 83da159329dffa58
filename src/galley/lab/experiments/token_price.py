"""The price of a token by machine."""

from typing import Final

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.drive import drive, greedy
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.plan.hardware import read_machines
from galley.plan.predict import predict
from galley.plan.steps import Load

_AT_ONCE: Final = 8
_PROMPT, _OUTPUT = 128, 64


def _run(lab: Lab) -> Finding:
    sizes = lab.sizes("int8")
    engine = lab.engine(weight_dtype="int8", max_running=_AT_ONCE, kv_cache_tokens=4096)
    count = 4 * _AT_ONCE

    def rate() -> float:
        requests = greedy(engine, lab.prompts([_PROMPT] * count), [_OUTPUT] * count)
        return drive(engine, requests).rate

    measured = lab.spread(rate)
    load = Load(prompt=_PROMPT, output=_OUTPUT, concurrency=_AT_ONCE)
    own = lab.predict(sizes, prompt=_PROMPT, output=_OUTPUT, concurrency=_AT_ONCE)
    found = [
        (machine, prediction)
        for machine in read_machines()
        if machine.price is not None
        and (prediction := predict(sizes, machine, load)) is not None
        and prediction.executor is not None
    ]
    found.sort(key=lambda one: one[1].cost or 0.0)
    return Finding(
        figures=[Figure(measured=measured.scaled(1 / own.tokens_per_second), predicted=1.0)],
        header=["machine", "$ an hour", "tokens/s", "$ per million tokens"],
        rows=[
            ["this machine, measured", "", f"{measured.median:.0f}", ""],
            ["this machine, predicted", "", f"{own.tokens_per_second:.0f}", ""],
            *(
                [m.name, f"{m.price:g}", f"{p.tokens_per_second:.0f}", f"{p.cost:.4f}"]
                for m, p in found
            ),
        ],
        pictures=[
            Bars(
                title=f"Predicted price, {_AT_ONCE} requests at a time",
                unit="$ per million output tokens",
                names=[machine.name for machine, _ in found],
                series=[Series("predicted", [p.cost for _, p in found])],
            )
        ],
        notes=[
            "Other machines are predicted, not measured; prices are those of galley plan's table. A model "
            "this small leaves large machines idle, so small ones are cheaper; try --model."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="token-price",
    title="The price of a token by machine",
    statement="A roofline predicts the throughput of a machine, and so its price of a token, within a "
    "factor of two.",
    source="LLM Inference Unveiled: Roofline Model Insights, arXiv:2402.16363 (the method; the factor is "
    "Galley's own claim)",
    prediction="galley plan with the measured rates of this machine.",
    claims=(Claim(figure="measured to predicted throughput", unit="times", low=0.5, high=2),),
    run=_run,
)
