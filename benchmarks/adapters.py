"""Measure the cost of LoRA adapters: decode steps with a different adapter per sequence, and without.

    python -m benchmarks.adapters [MODEL] [--adapters 32] [--rank 16] [--targets q_proj,v_proj]
                                  [--weight-dtype int8] [--context 64] [--tokens 32] [--rounds 5]

Random adapters are written to a temporary folder. Three batches of the same size run in turn: on an engine
without adapters, on one that has adapter slots but whose requests use none, and on one whose sequences use
a different adapter each. Prints the median step time of each, and how much longer the last two take. By
default all linear layers have adapters; ``--targets q_proj,v_proj`` are the layers of the LoRA paper.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.formats.adapter_files import CONFIG, TENSORS, adapter_digest
from galley.formats.source import resolve_model
from galley.graph.adapters import with_adapters
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import Adapter


def make_adapters(
    at: Path, settings: EngineSettings, model: Path, arguments: argparse.Namespace
) -> list[Adapter]:
    """Return random adapters for the layers whose names end in one of the targets."""
    program = with_adapters(read_model(settings, model).program)
    rng = np.random.default_rng(0)
    made = []
    for i in range(arguments.adapters):
        factors = {}
        for name in program.adapted:
            module, (outputs, inputs) = name.removesuffix(".weight"), program.shapes[name]
            if arguments.targets and module.rpartition(".")[2] not in arguments.targets.split(","):
                continue
            for side, shape in (("A", (arguments.rank, inputs)), ("B", (outputs, arguments.rank))):
                values = (0.01 * rng.standard_normal(shape)).astype(np.float16)
                factors[f"base_model.model.{module}.lora_{side}.weight"] = values
        folder = at / f"a{i}"
        folder.mkdir()
        save_file(factors, folder / TENSORS)
        config = {"peft_type": "LORA", "r": arguments.rank, "lora_alpha": arguments.rank}
        (folder / CONFIG).write_text(json.dumps(config))
        made.append(Adapter(folder.name, str(folder), adapter_digest(folder)))
    return made


def step_seconds(
    engine: Engine, adapters: Sequence[Adapter | None], *, context: int, tokens: int
) -> list[float]:
    """Time decoding steps with one sequence for each of ``adapters``."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, seed=0)
    rng = np.random.default_rng(1)
    ids = []
    for i, adapter in enumerate(adapters):
        prompt = rng.integers(
            3, min(30_000, engine.info.require_text().vocab_size), context
        ).tolist()
        [request] = expand(prompt, params, engine.info, request_id=f"{time.monotonic()}-{i}")
        engine.add(msgspec.structs.replace(request, adapter=adapter))
        ids.append(request.id)
    begun: set[str] = set()
    while len(begun) < len(ids):
        begun.update(output.request_id for output in engine.step())
    seconds = []
    for _ in range(tokens):
        began = time.perf_counter()
        outputs = engine.step()
        seconds.append(time.perf_counter() - began)
        assert len(outputs) == len(ids), "a sequence was preempted: there is too little memory"
    engine.abort(ids)
    return seconds


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", default="")
    parser.add_argument("--weight-dtype", default="int8")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = resolve_model(arguments.model)
    base = EngineSettings(
        model=arguments.model,
        weight_dtype=arguments.weight_dtype,
        threads=arguments.threads,
        speculation="off",
        max_running=arguments.adapters,
        kv_cache_tokens=arguments.adapters * (arguments.context + arguments.tokens + 64),
    )
    with tempfile.TemporaryDirectory() as at:
        adapters: list[Adapter | None] = [*make_adapters(Path(at), base, model, arguments)]
        room = dataclasses.replace(
            base, max_adapters=arguments.adapters, adapter_rank=arguments.rank
        )
        plain, adapted = load_engine(base, model), load_engine(room, model)
        none: list[Adapter | None] = [None] * arguments.adapters
        cases: dict[str, tuple[Engine, list[Adapter | None]]] = {
            "without adapters": (plain, none),
            "with slots, none named": (adapted, none),
            f"{arguments.adapters} adapters of rank {arguments.rank}": (adapted, adapters),
        }
        medians: dict[str, list[float]] = {name: [] for name in cases}
        for round_ in range(arguments.rounds + 1):
            for name, (engine, worn) in cases.items():
                steps = step_seconds(
                    engine, worn, context=arguments.context, tokens=arguments.tokens
                )
                if round_:  # the first request loads the adapters
                    medians[name].append(statistics.median(steps))
        alone = statistics.median(medians["without adapters"])
        for name, times in medians.items():
            middle = statistics.median(times)
            print(
                f"{name:28} {1000 * middle:8.2f} ms a step, from {1000 * min(times):.2f} to "
                f"{1000 * max(times):.2f}; {100 * (middle / alone - 1):+.1f} %"
            )
        plain.close()
        adapted.close()


if __name__ == "__main__":
    main()
