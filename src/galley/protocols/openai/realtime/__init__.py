"""``/v1/realtime``: live transcription over a WebSocket."""
