"""The recipe of `galley-demo`, the call-centre assistant: `python -m recipes.assistant.train`."""
