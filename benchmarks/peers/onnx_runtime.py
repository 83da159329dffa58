"""ONNX Runtime on padded batches, and fastembed, which does its own tokenization and batching on it.

torch exports the graph, ONNX Runtime's BERT optimizer fuses it and, for int8, its dynamic quantizer
quantizes it: the published files of both projects are made this way.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.embedding import Padded, Texts, Vectors, answer, text
from benchmarks.peers.protocol import Peer, main


def _load(folder: Path, variant: str, threads: int) -> Any:
    if variant.startswith("fastembed"):
        return _Fastembed(folder, threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )

    def rows(batches: Sequence[tuple[Any, Any]]) -> list[Any]:
        return [
            session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            for ids, mask in batches
        ]

    return Padded(rows)


class _Fastembed:
    def __init__(self, folder: Path, threads: int) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="random",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf="random"),
            dim=json.loads((folder / "config.json").read_text())["hidden_size"],
            model_file="model.onnx",
        )
        self._model = TextEmbedding("random", specific_model_path=str(folder), threads=threads)

    def embed(self, texts: Texts) -> Vectors:
        return list(self._model.embed([text(ids) for ids in texts]))


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Write a folder with the ONNX file and the tokenizer."""
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import BertModel

    class Rows(torch.nn.Module):
        """Map token ids and mask [batch, length] to [batch, length, width]."""

        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel.from_pretrained(
                checkpoint, add_pooling_layer=False, attn_implementation="eager"
            ).eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return rows

    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns("*.safetensors"))
    file = target / "model.onnx"
    ids, names = torch.ones(2, 16, dtype=torch.int64), ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "rows")}
    torch.onnx.export(
        Rows(),
        (ids, ids),
        str(file),
        input_names=names,
        output_names=["rows"],
        dynamic_axes=axes,
        dynamo=False,
    )
    config = json.loads((checkpoint / "config.json").read_text())
    heads, width = config["num_attention_heads"], config["hidden_size"]
    fused = optimizer.optimize_model(str(file), "bert", num_heads=heads, hidden_size=width)
    print(f"fused: {fused.get_fused_operator_statistics()}")
    fused.save_model_to_file(str(file))
    if variant == "int8":
        whole = file.rename(target / "float32.onnx")
        # The quantizer does not know the types of the fused operators.
        floats = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(whole, file, weight_type=QuantType.QInt8, extra_options=floats)
        whole.unlink()


PEER = Peer(
    name="onnx_runtime",
    variants={32: ("float32", "fastembed float32"), 8: ("int8",)},
    load=_load,
    answer=answer,
    convert=convert,
)

if __name__ == "__main__":
    main(PEER)
