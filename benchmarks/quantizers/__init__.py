"""One script for each quantizing peer, run by the Python of its virtual environment."""
