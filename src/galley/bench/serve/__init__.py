"""Load on a server with OpenAI's API, ours or another's, and what it makes of it, as a client sees it."""
