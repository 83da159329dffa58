"""Tiny random embedding models and rerankers, written by transformers, and their reference results."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

Floats = npt.NDArray[np.float32]

WORDS = re.findall(
    r"\w+",
    "the cat sat on mat and dog too line fault my router is broken what does a red light mean "
    "invoice pay bill how can we help you please call back tomorrow not working again since",
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIAL, *dict.fromkeys(WORDS), *"abcdefghijklmnopqrstuvwxyz", *"0123456789.,?!"]
VOCAB += [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
VOCAB_SIZE = len(VOCAB)

ENCODER: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
DECODER: dict[str, Any] = {
    "model_type": "qwen3",
    "num_key_value_heads": 2,
    "head_dim": 20,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 3,
    "max_position_embeddings": 256,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert"},
    "roberta": {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1},
    "qwen3": DECODER,
    "modernbert": {
        "model_type": "modernbert",
        "local_attention": 20,
        "num_hidden_layers": 4,
        "initializer_range": 0.1,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "nomic": {"model_type": "nomic_bert", "initializer_range": 0.1},
}


def make_model(
    folder: Path,
    variant: str = "bert",
    *,
    labels: int | None = None,
    pooling: str | None = None,
    normalize: bool = True,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write a random model with its tokenizer.

    Args:
        labels: labels of a classifier; None: no classifier.
        pooling: sentence-transformers' name ("cls_token", "mean_tokens"); None: without its files.
        normalize: whether its files include a normalization module.
    """
    torch.manual_seed(seed)
    shape = {**ENCODER, **VARIANTS[variant], **changes}
    config = AutoConfig.for_model(**shape, **({} if labels is None else {"num_labels": labels}))
    kind = AutoModel if labels is None else AutoModelForSequenceClassification
    model = kind.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif (
                "head.dense" in name or "pooler" in name or "classifier" in name or "score" in name
            ):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder, pairs_typed=shape["model_type"] == "bert")
    if pooling is not None:
        write_modules(folder, pooling, normalize=normalize, width=shape["hidden_size"])
    return folder


def write_modules(folder: Path, pooling: str, *, normalize: bool, width: int, **more: Any) -> None:
    """Write the files of sentence-transformers."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Normalize", "2_Normalize")] if normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    chosen = {"word_embedding_dimension": width, f"pooling_mode_{pooling}": True, **more}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(chosen))


def write_tokenizer(folder: Path, *, pairs_typed: bool = True, types: bool = True) -> None:
    """Write a WordPiece tokenizer with BERT's special tokens; ``types``: the model gets token types."""
    vocab = {token: i for i, token in enumerate(VOCAB)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    one = ":1" if pairs_typed else ":0"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B{one} [SEP]{one}",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    named = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokens = {f"{role}_token": token for role, token in named.items()}
    names = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **tokens)
    made.save_pretrained(folder)


def pooled(folder: Path, prompts: Sequence[Sequence[int]], how: str) -> list[Floats]:
    """Return the pooled rows of length 1, computed with transformers."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for ids in prompts:
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).last_hidden_state[0]
        vector = {"cls": rows[0], "mean": rows.mean(0), "last": rows[-1], "max": rows.amax(0)}[how]
        vectors.append((vector / vector.norm()).numpy())
    return vectors


def scored(folder: Path, pairs: Sequence[tuple[Sequence[int], int]]) -> list[float]:
    """Return the scores of transformers' classifier for (token ids, first token of type 1 or 0)."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for ids, second in pairs:
        types = [int(second > 0 and i >= second) for i in range(len(ids))]
        typed = {"token_type_ids": torch.tensor([types])} if second else {}
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), **typed).logits
        scores.append(float(torch.sigmoid(logits[0, 0])))
    return scores


def random_ids(length: int, seed: int = 0) -> list[int]:
    """Return token ids that are not special ones."""
    ids: list[int] = np.random.default_rng(seed).integers(5, VOCAB_SIZE, length).tolist()
    return ids
