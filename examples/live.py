"""Stream live audio, and print its text while the audio is still being sent.

A recording replaces the microphone. Text that has arrived is final.

    pip install 'openai[realtime]' av
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import av
from openai import OpenAI

CALL = Path(__file__).with_name("call.opus")


def pcm(recording: Path) -> Iterator[bytes]:
    """Yield 16-bit mono samples at 24 kHz."""
    with av.open(str(recording)) as container:
        resampler = av.AudioResampler("s16", "mono", 24_000)
        for frame in container.decode(audio=0):
            for resampled in resampler.resample(frame):
                yield resampled.to_ndarray().tobytes()


def main() -> None:
    """Send all of the recording as one turn, and print its text as it arrives."""
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    with client.realtime.connect(
        model="speech", extra_query={"intent": "transcription"}
    ) as connection:
        connection.session.update(
            session={
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24_000},
                        # With {"type": "server_vad"}, pauses end a turn instead of the commit below.
                        "turn_detection": None,
                    }
                },
            }
        )
        for samples in pcm(CALL):
            connection.input_audio_buffer.append(audio=base64.b64encode(samples).decode())
        connection.input_audio_buffer.commit()
        for event in connection:
            if event.type == "conversation.item.input_audio_transcription.delta":
                print(event.delta, end="", flush=True)
            elif event.type == "conversation.item.input_audio_transcription.completed":
                print()
                break
            elif event.type == "error":
                raise SystemExit(event.error.message)


if __name__ == "__main__":
    main()
