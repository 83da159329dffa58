"""Tools and thinking: how conversations specify them, and how models' answers are parsed.

Nothing here depends on a client's protocol. ``conversation.py`` defines the contents of a request,
independent of its wire format; ``events.py`` the parts of an answer: text, thinking, and tool
calls. A format (``formats.py``) is how one family of models writes calls and thinking; each has a
file with its parser.
"""
