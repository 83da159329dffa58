"""A server under a seeded schedule of faults: every request complete and correct, or clearly refused."""
