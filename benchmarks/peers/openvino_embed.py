"""OpenVINO on padded batches: exported by optimum-cli, quantized by NNCF for 8 bits."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.embedding import Padded, answer
from benchmarks.peers.protocol import Peer, main


def _load(folder: Path, variant: str, threads: int) -> Padded:
    import openvino

    config = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads}
    if variant == "bf16":
        config["INFERENCE_PRECISION_HINT"] = "bf16"
    if variant == "float32":
        config["INFERENCE_PRECISION_HINT"] = "f32"
    model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", config)
    queue: Any = openvino.AsyncInferQueue(model)
    kinds = {port.any_name for port in model.inputs}

    def rows(batches: Sequence[tuple[Any, Any]]) -> list[Any]:
        found: list[Any] = [None] * len(batches)

        def take(request: Any, place: int) -> None:
            found[place] = request.get_output_tensor(0).data.copy()

        queue.set_callback(take)
        for place, (ids, mask) in enumerate(batches):
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
            queue.start_async({k: v for k, v in inputs.items() if k in kinds}, place)
        queue.wait_all()
        return found

    return Padded(rows)


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Quantize weights and activations to 8 bits; activation ranges come from random texts."""
    tool = Path(sys.executable).with_name("optimum-cli")
    how = ("--task", "feature-extraction", "--weight-format", "fp32")
    subprocess.run([tool, "export", "openvino", "--model", checkpoint, *how, target], check=True)
    if variant == "int8":
        _quantize(target / "openvino_model.xml")


def _quantize(file: Path) -> None:
    import nncf
    import numpy as np
    import openvino

    model = openvino.Core().read_model(file)
    kinds = {port.any_name for port in model.inputs}
    rng = np.random.default_rng(0)
    samples = []
    for length in (8, 32, 64, 128, 256, 512):
        ids = rng.integers(1000, 30522, (1, length))
        inputs = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        samples.append({k: v for k, v in inputs.items() if k in kinds})
    made = nncf.quantize(model, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER)
    # The file is mapped while it is read, so the result is written to a new one first.
    openvino.save_model(made, file.with_name("made.xml"), compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        file.with_name("made" + suffix).replace(file.with_suffix(suffix))


PEER = Peer(
    name="openvino_embed",
    variants={32: ("float32",), 16: ("bf16",), 8: ("int8",)},
    load=_load,
    answer=answer,
    convert=convert,
    lives_with="openvino_genai",
)

if __name__ == "__main__":
    main(PEER)
