"""Executors, which compute the rows of a batch: one file or package each, and sampling."""
