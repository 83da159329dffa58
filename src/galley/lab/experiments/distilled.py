"""Distillation and int4 together."""

import dataclasses
import statistics
from typing import Final

from galley.bench.engine import EngineBench
from galley.bench.serve.bars import Series
from galley.errors import SettingsError
from galley.formats.source import BUNDLED, BUNDLED_DRAFT
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding, loss_bars
from galley.quality.compare import unrounded
from galley.quality.losses import losses


def _run(lab: Lab) -> Finding:
    student = lab.settings.draft_model or (
        BUNDLED_DRAFT if lab.settings.model in ("", BUNDLED) else ""
    )
    if not student:
        raise SettingsError("needs a distilled student of the model: give it as --draft-model")
    models = {
        "model, bf16": lab.with_(weight_dtype="bf16"),
        "model, int4": lab.with_(weight_dtype="int4"),
        "student, bf16": lab.with_(model=student, weight_dtype="bf16"),
        "student, int4": lab.with_(model=student, weight_dtype="int4"),
    }
    windows = lab.windows(256, 1024 if lab.quick else 4096)
    found = dict(
        zip(models, losses(unrounded(lab.with_()), [*models.values()], windows), strict=True)
    )
    prompt = lab.prompts([16])[0]
    benches = {
        name: EngineBench(dataclasses.replace(settings, kv_cache_tokens=1024))
        for name, settings in models.items()
    }
    bytes_of = {name: _weights(bench) for name, bench in benches.items()}

    def rate(name: str) -> float:
        steps = benches[name].decode([prompt], 16 if lab.quick else 64)
        return 1 / statistics.median(step.seconds for step in steps)

    whole, both = "model, bf16", "student, int4"
    gain = lab.ratio(lambda: rate(both), lambda: rate(whole))
    rates = {name: rate(name) for name in models}
    return Finding(
        figures=[
            Figure.exact(bytes_of[whole] / bytes_of[both]),
            Figure(measured=gain, predicted=bytes_of[whole] / bytes_of[both]),
            Figure.exact(100 * found[both].top1),
        ],
        header=["", "MB of weights", "decode, tokens/s", "mean KL, nats", "same token"],
        rows=[
            [
                name,
                f"{bytes_of[name] / 1e6:.1f}",
                f"{rates[name]:.0f}",
                f"{found[name].kl:.2g}",
                f"{found[name].top1:.1%}",
            ]
            for name in models
        ],
        pictures=[
            Bars(
                title="Decoding a single sequence",
                unit="tokens/s",
                names=[*models],
                series=[Series("measured", [rates[name] for name in models])],
            ),
            loss_bars(found),
        ],
        notes=[
            f"The student is {student}; losses are those to the unrounded model, on its own texts."
        ],
    )


def _weights(bench: EngineBench) -> int:
    """Return the bytes of the weights."""
    assert bench.info.ledger is not None
    return bench.info.ledger.weights


EXPERIMENT: Final = Experiment(
    name="distilled",
    title="Distillation and int4 together",
    statement="A distilled student with 4-bit weights takes 6 to 10 times fewer bytes, decodes 3 times as "
    "fast or more, and mostly says the same.",
    source="Distil-Whisper, arXiv:2311.00430 (5.8 times as fast, half of the parameters); GPTQ",
    prediction="Speed: by the bytes of the weights.",
    claims=(
        Claim(
            figure="bytes of weights to those of the student with int4",
            unit="times",
            low=6,
            high=10,
        ),
        Claim(figure="speed of the student with int4", unit="times", low=3),
        Claim(figure="same likeliest token", unit="%", low=80),
    ),
    run=_run,
)
