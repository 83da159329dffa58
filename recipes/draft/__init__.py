"""How the bundled draft model was made: `python -m recipes.draft.train`."""
