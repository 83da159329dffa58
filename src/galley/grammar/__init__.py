"""Structured output: restricting the next tokens so that a text follows a grammar.

llguidance compiles grammars and follows them; ``docs/operations/structured-output.md`` lists what is
supported. A grammar is checked in a text worker (``check.py``), where a hostile one only ends a process
that can be replaced; an accepted grammar is compiled again in the engine and followed there, token by token
(``matcher.py``).
"""
