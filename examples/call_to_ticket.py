"""Turn a recorded call into a JSON ticket, with a speech and a language model behind one server.

    galley serve chat=galley-demo speech=galley-demo-speech
    pip install openai
    python examples/call_to_ticket.py [RECORDING]

The bundled models are small and were trained for one narrow task: calls to one company, spoken by one
speech synthesizer. To use your own models, change only their names.
"""

import argparse
import json
from pathlib import Path

from openai import OpenAI

CALL = Path(__file__).with_name("call.opus")


def main() -> None:
    """Transcribe, ask for the ticket, print both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording", nargs="?", type=Path, default=CALL)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--speech", default="speech", help="name of the speech model on the server")
    parser.add_argument("--chat", default="chat", help="name of the language model on the server")
    arguments = parser.parse_args()
    client = OpenAI(base_url=arguments.url, api_key=arguments.key)
    with arguments.recording.open("rb") as recording:
        call = client.audio.transcriptions.create(model=arguments.speech, file=recording).text
    print(call)
    answer = client.chat.completions.create(
        model=arguments.chat,
        messages=[
            {"role": "system", "content": "Write the ticket as JSON."},
            {"role": "user", "content": call},
        ],
        temperature=0,
    )
    ticket = json.loads(answer.choices[0].message.content or "")
    print(json.dumps(ticket, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
