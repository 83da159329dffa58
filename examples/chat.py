"""Send a chat request, and print the answer and its receipt."""

import os

from openai import OpenAI


def main() -> None:
    """Ask one question."""
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    answer = client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "What is a KV cache?"}],
        temperature=0,
        max_tokens=64,
    )
    print(answer.choices[0].message.content)
    assert answer.usage
    receipt = answer.usage.model_extra or {}
    print(f"{answer.usage.completion_tokens} tokens, decoded in {receipt['decode_ms']:.0f} ms")


if __name__ == "__main__":
    main()
