"""OpenAI's API, and what vLLM, Cohere and Jina add to it: a package for each kind of request."""
