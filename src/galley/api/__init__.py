"""OpenAI's API as data: which fields a request has, what is answered, and how errors look.

Without HTTP: ``galley.server`` serves it, ``galley.cli.batch`` answers files of it.
"""
