"""Draft tokens regardless of their cost: from a function of the sequence, or from the real proposers."""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from pathlib import Path
from typing import Any

from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.scheduler import ProposeDrafts, Work
from galley.engine.sequence import Sequence
from galley.engine.speculation import EngineSpeculation, proposers_of
from galley.settings.engine import EngineSettings, Speculation
from galley.speculation.row_costs import RowCosts

FREE = {1: 1.0, 64: 1.0}
"""Costs at which rows are free, so that every possible token is drafted."""


def each(propose: Callable[[Sequence], Tokens[int]]) -> ProposeDrafts:
    """Return a proposer that calls ``propose`` for each eligible sequence, within the budget."""

    def propose_drafts(plan: list[Work], budget: int) -> list[tuple[int, Tokens[int]]]:
        found: list[tuple[int, Tokens[int]]] = []
        for i, work in enumerate(plan):
            most = min(budget, work.sequence.task.max_draft_tokens(work.sequence))
            if work.completes and most > 0:
                draft_tokens = propose(work.sequence)[:most]
                budget -= len(draft_tokens)
                found.append((i, draft_tokens))
        return found

    return propose_drafts


def eager(engine: Engine, chosen: Speculation, costs: dict[int, float] = FREE) -> Engine:
    """Make an engine draft from the sources ``chosen``, with the costs ``costs``."""
    proposers = proposers_of(EngineSettings(speculation=chosen))
    engine._speculation = EngineSpeculation(proposers, RowCosts(costs))
    assert engine._speculation._speculator is not None
    engine._speculation._speculator._trial.looks = lambda sequences: True  # type: ignore[method-assign]
    engine._scheduler.propose_drafts = engine._speculation.propose_drafts
    return engine


def drafting(folder: Path, draft: Path, **changes: Any) -> Engine:
    """Build an engine with a draft model whose steps, like all drafting, cost next to nothing."""
    settings = EngineSettings(threads=1, kv_cache_tokens=512)
    overrides = {"draft_model": str(draft), "speculation": "draft"} | changes
    engine = load_engine(dataclasses.replace(settings, **overrides), folder)
    speculator = engine._speculation._speculator
    assert speculator is not None
    assert speculator._drafter is not None
    speculator._costs = RowCosts(FREE)
    speculator._trial.looks = lambda sequences: True  # type: ignore[method-assign]
    speculator._drafter.costs = RowCosts({1: 1e-9, 64: 1e-9})
    return engine
