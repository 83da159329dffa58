"""Generated values of every data type of the Open Inference Protocol."""

import random
from typing import Any

import numpy as np


def dtype_of(name: str) -> Any:
    named = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
    return named.get(name) or (np.object_ if name == "BYTES" else np.dtype(name.lower()).type)


def generated(name: str, shape: tuple[int, ...], seed: int) -> Any:
    """Return any values of a data type, its limits included."""
    rng, dtype = np.random.default_rng(seed), dtype_of(name)
    if name == "BYTES":
        pick = random.Random(seed)
        texts = [
            "".join(pick.choices('aé日\x00 \n"', k=pick.randrange(6)))
            for _ in range(int(np.prod(shape)))
        ]
        return np.array([text.encode() for text in texts], object).reshape(shape)
    if name == "BOOL":
        return rng.random(shape) < 0.5
    if name.startswith("FP"):
        limits = np.finfo(dtype)
        made = rng.standard_normal(shape).astype(dtype)
        extreme = rng.choice(np.array([limits.max, limits.tiny, -limits.max, 0], dtype), shape)
        return np.where(rng.random(shape) < 0.2, extreme, made)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)


def same(one: Any, other: Any) -> bool:
    if other.dtype == np.object_:
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in one.ravel()]
        return texts == list(other.ravel())
    return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
