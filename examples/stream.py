"""Print an answer as it is generated."""

import os

from openai import OpenAI


def main() -> None:
    """Print each piece of text when it arrives."""
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    stream = client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "What is continuous batching?"}],
        temperature=0,
        max_tokens=64,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
