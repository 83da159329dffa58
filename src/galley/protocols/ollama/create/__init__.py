"""``/api/create`` and ``/api/copy``."""
