"""Random BERT checkpoints in the shapes of small embedding models; each word is one token."""

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.embedding import SPECIAL, word

VOCAB: Final = 30522
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "minilm": {"num_hidden_layers": 6, "intermediate_size": 1536},
    "bge-small": {"num_hidden_layers": 12, "intermediate_size": 1536},
    # A tiny shape for trying out the harness.
    "tiny-bert": {"num_hidden_layers": 2, "intermediate_size": 256, "hidden_size": 96},
}
"""all-MiniLM-L6 and bge-small-en: width 384, 12 heads."""


def write_bert(folder: Path, shape: str) -> None:
    """Write config.json, float32 weights and the tokenizer's files."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    words = {word(i): i for i in range(VOCAB) if i not in SPECIAL.values()}
    tokenizer = Tokenizer(models.WordLevel({**SPECIAL, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names) + "\n")
    torch.manual_seed(0)
    config = {"hidden_size": 384, "num_attention_heads": 12, **SHAPES[shape]}
    model = BertModel(BertConfig(vocab_size=VOCAB, **config), add_pooling_layer=False).eval()
    model.save_pretrained(folder)
