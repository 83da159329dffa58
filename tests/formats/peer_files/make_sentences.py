"""Makes `sentences/`: tiny models saved by sentence-transformers, and its results for some texts."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.embedding.checkpoints import make_model
from tests.formats.peer_files.sentence_models import EMBEDDERS, RERANKERS, SIZES, TEXTS


def cased(folder: Path) -> None:
    """Make the folder's tokenizer keep capital letters."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content))


def embedder(base: Path, how: dict[str, Any]) -> Any:
    """Return the model that an entry of EMBEDDERS describes."""
    make_model(base, "bert", **SIZES)
    if how.get("cased"):
        cased(base)
    more = {name: how[name] for name in ("max_seq_length",) if name in how}
    pooling = Pooling(SIZES["hidden_size"], pooling_mode=how["pooling_mode"])
    modules = [Transformer(str(base), **more), pooling]
    if "dense" in how:
        torch.manual_seed(5)
        modules.append(Dense(pooling.get_embedding_dimension(), how["dense"]))
    if how.get("normalize", True):
        modules.append(Normalize())
    known = ("truncate_dim", "prompts", "default_prompt_name")
    options = {name: how[name] for name in known if name in how}
    return SentenceTransformer(modules=modules, device="cpu", **options)


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1]) / "sentences"
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, how in EMBEDDERS.items():
            model = embedder(Path(temporary) / name, how)
            model.save(str(folder / name), create_model_card=False)
            if "older" in how:
                (folder / name / "sentence_bert_config.json").write_text(json.dumps(how["older"]))
                model = SentenceTransformer(str(folder / name), device="cpu")
            made[name] = model.encode(TEXTS, convert_to_numpy=True)
        for name, activation in RERANKERS.items():
            base = make_model(Path(temporary) / name, "bert", labels=1, **SIZES)
            function = None if activation is None else getattr(torch.nn, activation)()
            ranker = CrossEncoder(str(base), activation_fn=function, device="cpu")
            ranker.save_pretrained(str(folder / name), create_model_card=False)
            made[name] = ranker.predict([(TEXTS[0], text) for text in TEXTS])
    np.savez_compressed(folder / "made.npz", allow_pickle=False, **made)


if __name__ == "__main__":
    main()
