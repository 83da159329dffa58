"""The APIs that are served, a package each, and what they share.

``schemas`` say what requests hold, ``answers`` what comes back; neither knows HTTP. ``routes`` serve both
over HTTP, with what ``galley.protocols.http`` has for all of them.
"""
