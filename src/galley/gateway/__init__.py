"""Between the protocols and the engines: every request is submitted, counted and recorded here, once.

A protocol (``galley.protocols``, for ``galley.server`` or ``galley.cli.batch``) finds a
:class:`~.served.ServedModel` in the :class:`~.registry.Registry` by name and task, and makes a
:class:`~.call.Call` of its request. Nothing here knows HTTP.
"""
