"""Tools and thinking: what conversations say of them, and models' answers taken apart.

Nothing here knows a client's protocol. ``conversation.py`` is what a request says, whatever its spelling;
``events.py`` what an answer is made of: text, thinking, and calls of tools. A format (``formats.py``) is
how one family of models writes calls and thinking; each has a file with its parser.
"""
