"""OpenAI's API, with vLLM's, Cohere's and Jina's additions: a package for each type of request."""
