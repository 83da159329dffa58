"""The models in `sentences/`, and the texts of their vectors and scores."""

from typing import Any, Final

TEXTS: Final = [
    "my ROUTER is broken",
    "The red light, what does it mean?",
    "call back tomorrow " * 4,
    "a",
    "Please PAY the invoice 2024.",
]

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "max_position_embeddings": 40,
}
"""Sizes of all models."""

EMBEDDERS: Final[dict[str, dict[str, Any]]] = {
    "mean": {"pooling_mode": "mean"},
    "several": {"pooling_mode": ["cls", "max", "mean"], "normalize": False},
    "several-otherwise": {"pooling_mode": ["mean", "lasttoken", "cls"], "dense": 12},
    "weighted": {"pooling_mode": ["weightedmean", "mean_sqrt_len_tokens"], "normalize": False},
    "truncated": {"pooling_mode": "cls", "truncate_dim": 10},
    "lower-case": {"pooling_mode": "mean", "cased": True, "older": {"do_lower_case": True}},
    "short": {"pooling_mode": "mean", "max_seq_length": 9},
    "short-older": {"pooling_mode": "cls", "older": {"max_seq_length": 7, "do_lower_case": False}},
    "prompted": {
        "pooling_mode": "mean",
        "prompts": {"query": "a question, ", "document": ""},
        "default_prompt_name": "query",
    },
}
"""Name of a folder -> its special settings; ``older`` are files that earlier releases added."""

RERANKERS: Final = {
    "rerank-identity": "Identity",
    "rerank-sigmoid": "Sigmoid",
    "rerank-default": None,
    "rerank-tanh": "Tanh",
}
"""Name of a folder -> the activation of scores; the last is not supported by Galley."""
