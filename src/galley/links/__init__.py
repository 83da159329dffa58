"""Authenticated connections between machines: the token, the handshake, and sealed frames."""
