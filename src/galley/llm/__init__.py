"""``galley.LLM``: the engine in the caller's process, for offline work, tests and notebooks."""
