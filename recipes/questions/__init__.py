"""Labelled pairs of questions, for the semantic response cache."""
