"""The loss of settings of a model on given texts, compared with other settings."""

from collections.abc import Iterator, Sequence

import numpy as np

from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, Loss, following
from galley.formats.source import resolve_model
from galley.ops.sampling import Logits
from galley.quality.texts import Window
from galley.settings.engine import EngineSettings


def losses(
    base: EngineSettings, models: Sequence[EngineSettings], windows: Sequence[Window]
) -> Iterator[Loss]:
    """Yield the loss of each of the models.

    The base's logits of all windows are in memory: a window of 256 tokens has 256 x vocabulary floats.

    Args:
        base: the truth, such as :func:`galley.quality.compare.unrounded` returns.
        models: settings with the same vocabulary.
        windows: token ids, each a text of its own.

    Raises:
        ModelError, SettingsError: a checkpoint or its settings cannot be used.
    """
    truth = _logits(base, windows)
    for model in models:
        found = Divergence()
        for window, expected, got in zip(windows, truth, _logits(model, windows), strict=True):
            found.add(expected, got, following([window]))
        yield found.loss()


def _logits(settings: EngineSettings, windows: Sequence[Window]) -> list[Logits]:
    folder = resolve_model(settings.model, revision=settings.revision)
    with TeacherForced(settings, folder, longest=max(map(len, windows))) as model:
        return [
            np.concatenate([rows.copy() for _, rows in model.logits(window)]) for window in windows
        ]
