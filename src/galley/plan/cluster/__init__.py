"""Predicts how several replicas of a model serve some traffic, by simulation."""
