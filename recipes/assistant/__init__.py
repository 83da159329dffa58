"""The recipe of `galley-demo`, the call-center assistant: `python -m recipes.assistant.train`."""
