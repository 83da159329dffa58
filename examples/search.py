"""Search by meaning: find the documents whose vectors are nearest to the query's."""

import os

import numpy as np
from openai import OpenAI

DOCUMENTS = [
    "The KV cache keeps the keys and values of tokens that were already processed.",
    "Problems with a router or a broadband connection at home.",
    "Questions about an invoice or a payment.",
]
QUERIES = ["My router has a red light.", "There is a mistake in my invoice."]


def main() -> None:
    """Embed documents and queries in two requests, then print the best document of each query."""
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))

    def embed(texts: list[str]) -> np.ndarray:
        answer = client.embeddings.create(model="embed", input=texts)
        return np.array([item.embedding for item in answer.data])

    # The vectors have length 1, so a dot product is the cosine.
    scores = embed(QUERIES) @ embed(DOCUMENTS).T
    for query, row in zip(QUERIES, scores, strict=True):
        best = int(row.argmax())
        print(f"{query} -> {DOCUMENTS[best]} ({row[best]:.2f})")


if __name__ == "__main__":
    main()
