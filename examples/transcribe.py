"""Transcribe a recording, and print the time of each word.

python examples/transcribe.py [RECORDING]
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

CALL = Path(__file__).with_name("call.opus")


def main() -> None:
    """Print the text, then each word with its time."""
    recording = Path(sys.argv[1]) if len(sys.argv) > 1 else CALL
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    with recording.open("rb") as file:
        transcript = client.audio.transcriptions.create(
            model="speech",
            file=file,
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    print(transcript.text)
    for word in transcript.words or []:
        print(f"{word.start:6.2f} {word.end:6.2f}  {word.word}")


if __name__ == "__main__":
    main()
