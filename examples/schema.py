"""Get an answer that follows a JSON schema, from any model."""

import json
import os

from openai import OpenAI

CALL = (
    "Hello, is this the helpline? I'm Henry Ahmed. My account number is 51541141. "
    "I need a refund for the TV package and this is about £95."
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": ["string", "null"], "maxLength": 60},
        "account": {"type": ["string", "null"], "pattern": "^[0-9]{6,10}$"},
        "intent": {"enum": ["refund", "billing", "fault", "cancel", "delivery"]},
        "product": {"enum": ["broadband", "router", "TV package", "insurance", None]},
        "amount": {"type": ["integer", "null"], "minimum": 0, "maximum": 100_000},
        "date": {"type": ["string", "null"], "maxLength": 20},
        "urgency": {"enum": ["low", "normal", "high"]},
    },
    "required": ["name", "account", "intent", "product", "amount", "date", "urgency"],
    "additionalProperties": False,
}


def main() -> None:
    """Turn a caller's words into a record."""
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    answer = client.chat.completions.create(
        model="chat",
        messages=[
            {"role": "system", "content": "Write the ticket as JSON."},
            {"role": "user", "content": CALL},
        ],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "ticket", "schema": SCHEMA, "strict": True},
        },
        temperature=0,
        max_tokens=128,
    )
    ticket = json.loads(answer.choices[0].message.content or "")
    print(json.dumps(ticket, indent=2))


if __name__ == "__main__":
    main()
