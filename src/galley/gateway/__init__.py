"""The layer between the protocols and the engines, which submits, counts and records every request once.

A protocol (``galley.protocols``, for ``galley.server`` or ``galley.cli.batch``) finds a
:class:`~.served.ServedModel` in the :class:`~.registry.Registry` by name and task, and creates a
:class:`~.call.Call` for its request. Nothing here depends on HTTP.
"""
