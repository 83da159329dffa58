"""How the bundled models of diarization were made; see :mod:`recipes.speakers.convert`."""
