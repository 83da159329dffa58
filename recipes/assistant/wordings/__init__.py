"""Callers' sentences: the wordings for training, and the unseen wordings of held-out set 2."""

from __future__ import annotations

from .caller import ACCOUNT, CHATTER, CLOSING, GREETING, NAME, NAME_ACCOUNT, REDACT
from .detail import AMOUNT, DATE, URGENCY
from .grammar import Clauses, Wordings, clauses_of
from .held_out import HELD_OUT
from .problem import PROBLEM

__all__ = ["HELD_OUT", "TRAINING", "Clauses", "Wordings", "clauses_of"]

TRAINING = Wordings(
    GREETING, NAME, ACCOUNT, NAME_ACCOUNT, PROBLEM, AMOUNT, DATE, URGENCY, CHATTER, CLOSING, REDACT
)
