"""Recorded requests of clients, verbatim; each file names the client and its version."""

from pathlib import Path
from typing import Final

RECORDINGS: Final = Path(__file__).parent
