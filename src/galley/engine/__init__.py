"""Requests to tokens, vectors and scores: scheduler, tasks, KV cache, and the loading of models."""
