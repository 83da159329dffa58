"""Checkpoints on disk or on the hub: readers that yield configuration and typed weights."""
