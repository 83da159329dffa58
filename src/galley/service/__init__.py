"""The boundary between server and engine process: frames, client and supervisor, worker, text workers."""
