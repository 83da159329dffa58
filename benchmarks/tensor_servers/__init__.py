"""Servers of tensor models that are compared with Galley, each run by a Python of its own.

``python -m benchmarks.tensor_servers.NAME FOLDER PORT`` serves the three models in ``FOLDER``, with the
server's own batching (64 requests, 1 ms) and one thread of each library for each request.
"""
