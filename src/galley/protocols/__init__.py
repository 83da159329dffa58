"""The served APIs, one package each, and the code that they share.

``schemas`` define the requests and ``answers`` the answers; neither knows HTTP. ``routes`` serve
both over HTTP, using the code shared in ``galley.protocols.http``.
"""
