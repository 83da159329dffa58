"""Let a model call a Python function and answer with its result.

    python examples/tools.py --model NAME

The model's chat template must support tools, as those of Qwen 3 or Llama 3.1 do.
"""

import argparse
import json
import os

from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

STATUS = {"router": "no fault known", "broadband": "down until 18:00"}

TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "service_status",
        "description": "Current status of a product",
        "parameters": {
            "type": "object",
            "properties": {"product": {"enum": list(STATUS)}},
            "required": ["product"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    """Ask, run what the model calls, ask again with the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="chat")
    model = parser.parse_args().model
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "My broadband does not work. Is there a fault?"}
    ]
    first = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=128,
    )
    [call] = first.choices[0].message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    print("called:", call.function.name, arguments)
    result = STATUS[arguments["product"]]
    messages.append(
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": call.function.arguments,
                    },
                }
            ],
        }
    )
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[TOOL],
        tool_choice="none",
        temperature=0,
        max_tokens=64,
    )
    print("answer:", second.choices[0].message.content)


if __name__ == "__main__":
    main()
