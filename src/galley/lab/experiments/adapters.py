"""Different LoRA adapters in one batch."""

import functools
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from galley.bench.serve.bars import Series
from galley.calibration.compressed import Raw, write_tensors
from galley.engine.engine import Engine
from galley.formats.adapter_files import CONFIG, TENSORS, adapter_digest
from galley.graph.adapters import with_adapters
from galley.graph.program import Program
from galley.lab.bench import Lab
from galley.lab.drive import drive, greedy
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.types import Adapter

_SEQUENCES: Final = 16
_RANK: Final = 16
_OUTPUT: Final = 24


def _run(lab: Lab) -> Finding:
    with tempfile.TemporaryDirectory() as at:
        adapters = _adapters(Path(at), with_adapters(lab.model.program))
        room = {"weight_dtype": "int8", "max_running": _SEQUENCES, "kv_cache_tokens": 4096}
        plain = lab.engine(**room)
        adapted = lab.engine(**room, max_adapters=_SEQUENCES, adapter_rank=_RANK)
        none: list[Adapter | None] = [None] * _SEQUENCES
        cases: dict[str, tuple[Engine, Sequence[Adapter | None]]] = {
            "no adapters": (plain, none),
            "one for all": (adapted, [adapters[0]] * _SEQUENCES),
            "one for each": (adapted, adapters),
        }
        prompts = lab.prompts([16] * _SEQUENCES)

        def gap(name: str) -> float:
            engine, used = cases[name]
            requests = [
                msgspec.structs.replace(request, adapter=adapter)
                for request, adapter in zip(
                    greedy(engine, prompts, [_OUTPUT] * _SEQUENCES), used, strict=True
                )
            ]
            run = drive(engine, requests)
            return statistics.median(gap for one in run.requests for gap in one.gaps)

        slower = lab.ratio(lambda: gap("one for each"), lambda: gap("no adapters"))
        times = {name: lab.spread(functools.partial(gap, name)).median for name in cases}
    factors = sum(_RANK * sum(lab.model.program.shapes[n]) for n in _names(lab.model.program))
    own = lab.sizes("int8").row_operations / 2
    return Finding(
        figures=[Figure(measured=slower, predicted=1 + factors / own)],
        header=["adapters", "ms a step"],
        rows=[[name, f"{1e3 * seconds:.3f}"] for name, seconds in times.items()],
        pictures=[
            Bars(
                title=f"A decode step of {_SEQUENCES} sequences",
                unit="ms",
                names=[*cases],
                series=[Series("measured", [1e3 * seconds for seconds in times.values()])],
            )
        ],
        notes=[
            f"Random adapters of rank {_RANK} on all linear layers. In a narrow model their part of the "
            "arithmetic is larger than in a wide one."
        ],
    )


def _names(program: Program) -> list[str]:
    return [*with_adapters(program).adapted]


def _adapters(at: Path, program: Program) -> list[Adapter]:
    """Write random adapters for all layers that can have one."""
    random = np.random.default_rng(0)
    made = []
    for i in range(_SEQUENCES):
        tensors = {}
        for name in program.adapted:
            outputs, inputs = program.shapes[name]
            for side, shape in (("A", (_RANK, inputs)), ("B", (outputs, _RANK))):
                values = (0.01 * random.standard_normal(shape)).astype(np.float16)
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"
                tensors[key] = Raw("F16", shape, values.view(np.uint8).reshape(-1))
        folder = at / f"adapter{i}"
        folder.mkdir()
        write_tensors(folder / TENSORS, tensors)
        config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK}
        (folder / CONFIG).write_text(json.dumps(config))
        made.append(Adapter(folder.name, str(folder), adapter_digest(folder)))
    return made


EXPERIMENT: Final = Experiment(
    name="adapters",
    title="Different LoRA adapters in one batch",
    statement="Sequences with different adapters share a batch, and are hardly slower than the base model.",
    source="Punica, arXiv:2310.18547; S-LoRA, arXiv:2311.03285",
    prediction="The arithmetic of the adapters, in proportion to that of the layers.",
    claims=(Claim(figure="step with an adapter each to that without", unit="times", high=1.5),),
    run=_run,
)
