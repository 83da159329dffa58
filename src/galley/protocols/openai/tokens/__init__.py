"""``/tokenize`` and ``/detokenize``, shaped as in vLLM's API."""
