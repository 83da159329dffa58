"""``/api/embed`` and ``/api/embeddings``."""
