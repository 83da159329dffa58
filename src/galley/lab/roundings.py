"""What the experiments on rounding share: the model that is rounded, texts, and columns of losses."""

import dataclasses
from typing import Final, NamedTuple

from galley.calibration.held_out import Texts, held_apart
from galley.calibration.measures import Loss
from galley.engine.read_model import Model, read_for_executor
from galley.lab.bench import Lab
from galley.ops.choice import choose_executor
from galley.ops.executor import ExecutorFactory

LOSS_COLUMNS: Final = ("mean KL, nats", "99 % KL", "same token")


class Material(NamedTuple):
    """What is rounded and measured.

    Attributes:
        model: with its weights as in the checkpoint.
        factory: of the executor that runs it.
        texts: that the model generated.
    """

    model: Model
    factory: ExecutorFactory
    texts: Texts


def material(lab: Lab) -> Material:
    """Read the model, and have it generate texts to calibrate with and texts to measure on."""
    texts = held_apart(lab.windows(256, 2048 if lab.quick else 16384))
    chosen = choose_executor(lab.settings.executor, lab.settings.device)
    # Keys and values are not part of these measurements.
    settings = dataclasses.replace(lab.settings, kv_dtype="float32")
    model, _, factory = read_for_executor(settings, lab.folder, chosen)
    return Material(model, factory, texts)


def loss_cells(loss: Loss) -> list[str]:
    """Return the cells of a loss below :data:`LOSS_COLUMNS`."""
    return [f"{loss.kl:.3g}", f"{loss.kl_p99:.3g}", f"{loss.top1:.2%}"]
