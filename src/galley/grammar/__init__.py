"""Structured output: which tokens may come next, so that a text follows a grammar.

llguidance compiles grammars and follows them; ``docs/operations/structured-output.md`` says what is
supported. A grammar is checked in a text worker (``check.py``), where one that is hostile ends a process of
no consequence; what has passed is compiled again in the engine (``compiled.py``) and followed there, token
by token (``matcher.py``).
"""
