"""Settings: declared once, read from defaults, ``galley.yaml``, ``GALLEY_*`` variables and flags."""
