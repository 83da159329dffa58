"""A model in parts: the same bits as in one process, whatever is divided."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley import SamplingParams
from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.graph.divide import divide
from galley.ops.batch import Batch
from galley.ops.executor import Executor, forward
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from tests.checkpoints import KNOWN_OPS, VARIANTS, random_ids
from tests.conftest import CheckpointMaker
from tests.engine.ranks import divided
from tests.native.harness import Floats, ragged
from tests.thorough import some_of

LENGTHS = (1, 19, 40)
SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"quantize": "int8", "kv_dtype": "int8"},
    "int4": {"quantize": "int4", "kv_dtype": "int4"},
    "float32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16", "quantize": "bf16"},
}


def settings_of(folder: Path, kind: str, ranks: int = 1, **more: Any) -> EngineSettings:
    return EngineSettings(
        **{
            "model": str(folder),
            "executor": "cpu",
            "threads": 1,
            "kv_cache_tokens": 2048,
            "speculation": "off",
            "weight_cache": False,
            "tensor_parallel": ranks,
            **SETTINGS[kind],
            **more,
        }
    )


def all_logits(executor: Executor) -> list[Floats]:
    """Return the logits of a ragged prefill with all rows wanted, then with some, then of a decode step."""
    ids = [random_ids(n, n + 1) for n in LENGTHS]
    groups = executor.kv_groups
    whole = ragged([(list(i[:-1]), len(i) - 1) for i in ids], first_block=0, groups=groups)
    ends = np.asarray(whole.starts)[1:] - 1
    some = Batch(whole.tokens, whole.positions, whole.starts, whole.tables, ends)
    decode = ragged([(i, 1) for i in ids], first_block=0, groups=groups)
    return [forward(executor, batch).copy() for batch in (whole, some, decode)]


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        *((v, "int8") for v in VARIANTS if v in KNOWN_OPS),
        *some_of([v for v in VARIANTS if v not in KNOWN_OPS], list(SETTINGS), of=3),
    ],
    ids=str,
)
def test_no_division_changes_a_bit(variant: str, kind: str, checkpoint: CheckpointMaker) -> None:
    folder = checkpoint(variant)
    plain = load_engine(settings_of(folder, kind), folder)
    expected = all_logits(plain._executor)
    for ranks in (2, 4):
        with divided(settings_of(folder, kind, ranks), folder) as engine:
            for got, wanted in zip(all_logits(engine._executor), expected, strict=True):
                assert np.array_equal(got.view(np.int32), wanted.view(np.int32)), ranks
