"""LoRA adapters on the GPU executor: the reference executor's logits, and the same bits in any batch."""

from pathlib import Path

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE

from galley.engine.loaders import load_engine
from galley.formats.adapter import read_adapter
from galley.formats.checkpoint import Checkpoint
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.executor import Executor, forward
from galley.settings.engine import EngineSettings, ExecutorName
from galley.types import Adapter
from tests.adapters.peft import make_adapter
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker

RANK = 20
LENGTHS = (1, 19, 1, 5)
SLOTS = (0, 1, -1, 0)


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama-mqa-odd")


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    at = tmp_path_factory.mktemp("adapters")
    return [
        make_adapter(at / "all", folder, rank=8),
        make_adapter(at / "few", folder, seed=2, rank=20, targets={"v_proj", "up_proj"}),
    ]


def executor_with(folder: Path, adapters: list[Adapter], executor: ExecutorName) -> Executor:
    settings = EngineSettings(
        executor=executor,
        device=DEVICE if executor == "gpu" else "cpu",
        dtype="float32",
        kv_cache_tokens=512,
        max_adapters=3,
        adapter_rank=RANK,
        speculation="off",
    )
    made = load_engine(settings, folder).executor
    shapes = build_program(Checkpoint.open(folder).config).shapes
    for slot, adapter in enumerate(adapters):
        weights = read_adapter(Path(adapter.path), shapes, RANK)
        made.set_adapter(slot, made.pack_adapter(weights))
    return made


def batch_of(sequences: list[int], slots: list[int] | None = None) -> Batch:
    """Return whole texts, of up to two blocks each."""
    lengths = [LENGTHS[s] for s in sequences]
    starts = np.cumsum([0, *lengths])
    own = [SLOTS[s] for s in sequences] if slots is None else slots
    return Batch(
        tokens=np.concatenate([random_ids(s, LENGTHS[s]) for s in sequences]),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        starts=starts,
        tables=tuple(np.array([2 * s + 1, 2 * s + 2]) for s in sequences),
        wanted=np.arange(starts[-1]),
        adapters=np.array(own, dtype=np.int64),
    )


def test_logits_are_those_of_the_reference_executor(folder: Path, adapters: list[Adapter]) -> None:
    made, reference = (executor_with(folder, adapters, name) for name in ("gpu", "reference"))
    got, wanted = (forward(e, batch_of([0, 1, 2, 3])).copy() for e in (made, reference))
    assert np.linalg.norm(got - wanted) <= 1e-5 * np.linalg.norm(wanted)
    plain = forward(made, batch_of([0, 1, 2, 3], [-1] * 4)).copy()
    assert np.array_equal(plain[20], got[20])  # the sequence without an adapter
    assert np.linalg.norm(plain - wanted) > 0.05 * np.linalg.norm(wanted)
    # The bits of a row are the same alone; rows of an emptied slot have no adapter.
    assert np.array_equal(forward(made, batch_of([1])), got[1:20])
    # Single rows run as a graph on a GPU.
    assert np.array_equal(forward(made, batch_of([0, 2])), got[[0, 20]])
    made.set_adapter(1, None)
    assert np.array_equal(forward(made, batch_of([0, 1, 2, 3]))[1:20], plain[1:20])
