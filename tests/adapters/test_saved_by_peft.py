"""Adapters saved by PEFT: its default output is served, what needs more is refused."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from galley.engine.loaders import load_engine
from galley.errors import UnsupportedModel
from galley.formats.adapter import read_adapter, read_config
from galley.ops.executor import forward
from galley.settings.engine import EngineSettings
from tests.formats.peer_files.peft_adapters import ADAPTERS, IDS, REFUSED
from tests.formats.values import relative
from tests.native.harness import program_of, ragged

FOLDER = Path(__file__).parents[1] / "formats/peer_files/peft"


@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_are_those_of_peft(name: str) -> None:
    base = FOLDER / "base"
    settings = EngineSettings(
        dtype="float32",
        weight_dtype="float32",
        kv_dtype="float32",
        kv_cache_tokens=64,
        max_adapters=1,
        adapter_rank=8,
        weight_cache=False,
        threads=1,
    )
    executor = load_engine(settings, base).executor
    weights = read_adapter(FOLDER / name, program_of(base).shapes, 8)
    executor.set_adapter(0, executor.pack_adapter(weights))
    batch = ragged([(IDS, len(IDS))], first_block=1)
    got = forward(executor, msgspec.structs.replace(batch, adapters=np.array([0]))).copy()
    with np.load(FOLDER / "logits.npz") as logits:
        expected = logits[name]
    assert relative(got, expected) < 1e-4
    assert relative(forward(executor, batch), expected) > 0.02


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused_by_the_name_that_peft_gives_it(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"'?{name}'? is "):
        read_config(FOLDER / name)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"velvet_size": 32, "use_velvet": False}, None),
        ({"velvet_size": 32, "velvet_config": None}, None),
        ({"velvet_core": "velvet.core", "velvet_config": None, "use_velvet": False}, None),
        ({"velvet_size": 32, "use_velvet": True}, "velvet_size"),
        ({"velvet_size": 32, "velvet_config": {"a": 1}, "use_velvet": False}, "velvet_size"),
        ({"use_velvet": True}, "use_velvet"),
        ({"velvet_config": {"a": 1}}, "velvet_config"),
        ({"velvet_size": 32}, "velvet_size"),
    ],
)
def test_details_of_a_feature_that_is_off_ask_for_nothing(
    tmp_path: Path, fields: dict[str, Any], refused: str | None
) -> None:
    """This includes features that no release has yet."""
    saved = json.loads((FOLDER / "plain/adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**saved, **fields}))
    if refused is None:
        assert read_config(tmp_path) == read_config(FOLDER / "plain")
    else:
        with pytest.raises(UnsupportedModel, match=re.escape(f"'{refused}' is ")):
            read_config(tmp_path)
