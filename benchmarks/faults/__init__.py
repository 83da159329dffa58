"""Test a server under a seeded schedule of faults: requests complete correctly or are clearly refused."""
