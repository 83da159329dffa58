"""Answer a file of requests offline, without a server.

The same as ``galley batch requests.jsonl results.jsonl``. If it is interrupted, run it again: it resumes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTIONS = ["What is a KV cache?", "What is prefill?", "What is a token?"]


def main() -> None:
    """Write the requests, run the batch, print the answers in order."""
    with tempfile.TemporaryDirectory() as folder:
        requests, results = Path(folder, "requests.jsonl"), Path(folder, "results.jsonl")
        with requests.open("w", encoding="utf-8") as file:
            for number, question in enumerate(QUESTIONS):
                body = {
                    "messages": [{"role": "user", "content": question}],
                    "temperature": 0,
                    "max_tokens": 48,
                }
                request = {
                    "custom_id": str(number),
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": body,
                }
                file.write(json.dumps(request) + "\n")
        command = [sys.executable, "-m", "galley", "batch", str(requests), str(results)]
        subprocess.run([*command, "--model", "galley-demo"], check=True)
        # Results are in order of completion.
        answers = {}
        for line in results.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            choice = result["response"]["body"]["choices"][0]
            answers[int(result["custom_id"])] = choice["message"]["content"]
    for number, question in enumerate(QUESTIONS):
        print(f"{question} {answers[number]}")


if __name__ == "__main__":
    main()
