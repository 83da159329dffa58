"""Labeled pairs of questions, for the semantic response cache."""
