"""``python -m galley`` is ``galley``."""

from galley.cli.main import main

main()
