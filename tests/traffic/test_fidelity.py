"""Two servers' predictions of the same texts, compared with what the models compute in this process."""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.bench.serve.client import Client
from galley.bench.serve.fidelity import Fidelity, compare_texts, divergence
from galley.demo import heldout
from galley.errors import EngineError
from galley.formats.source import resolve_model
from galley.quality.losses import losses
from galley.settings.engine import EngineSettings
from galley.text.tokenizer import Tokenizer
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("traffic")


def logs(**shares: float) -> dict[str, float]:
    return {token: math.log(share) for token, share in shares.items()}


def test_a_divergence_over_few_tokens_is_a_lower_bound() -> None:
    p = {"a": 0.6, "b": 0.3, "c": 0.06, "d": 0.04}
    q = {"a": 0.4, "b": 0.4, "c": 0.1, "d": 0.1}
    whole = sum(p[x] * math.log(p[x] / q[x]) for x in p)
    assert divergence(logs(**p), logs(**q)) == pytest.approx(whole)
    listed = divergence(logs(a=0.6, b=0.3), logs(a=0.4, c=0.1))
    assert 0 < listed < whole
    assert divergence(logs(a=0.6, b=0.3), logs(a=0.6, b=0.3)) == 0
    assert divergence({}, {}) == 0


def test_servers_are_compared_as_the_models_in_this_process_are(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(resolve_model(""))
    items = heldout.read(1)[:4]
    windows = [tokenizer.encode(str(item.messages[-1]["content"]) * 3)[:80] for item in items]
    texts = [(window[:1], window[1:]) for window in windows]
    settings: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 2048}

    async def run(
        one: str, other: str, texts: list[tuple[list[int], list[int]]] = texts
    ) -> Fidelity:
        with contextlib.closing(Client(one)) as first, contextlib.closing(Client(other)) as second:
            return await compare_texts((first, second), ("galley-demo", "galley-demo"), texts)

    with (
        Server("galley-demo", tmp_path / "a", **settings) as base,
        Server("galley-demo", tmp_path / "b", weight_dtype="int4", **settings) as small,
    ):
        found = asyncio.run(run(base.url, small.url))
        unlike = [([window[0]], [3]) for window in windows]
        # Nothing predicts the first token of a text.
        with pytest.raises(EngineError, match="0 tokens of an answer of 1"):
            asyncio.run(run(base.url, base.url, [([], [3])]))
        with pytest.raises(EngineError, match="log-probabilities"):
            asyncio.run(_unknown(base.url, unlike))
    own = EngineSettings()
    [loss] = losses(own, [EngineSettings(weight_dtype="int4")], [tuple(w) for w in windows])
    assert found.texts == 4
    assert found.tokens == loss.tokens == sum(len(answer) for _, answer in texts)
    assert found.perplexities == pytest.approx((loss.base_perplexity, loss.perplexity), rel=0.01)
    # The model's own figure counts the position after each text, too.
    assert found.top1 == pytest.approx(loss.top1, abs=0.03)
    assert 0.3 * loss.kl < found.kl < 1.05 * loss.kl
    assert np.isfinite(found.kl)


async def _unknown(url: str, texts: list[tuple[list[int], list[int]]]) -> Fidelity:
    with contextlib.closing(Client(url)) as one:
        return await compare_texts((one, one), ("no-such-model", "no-such-model"), texts)
