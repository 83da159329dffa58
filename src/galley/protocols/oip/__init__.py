"""The Open Inference Protocol, version 2, over HTTP, with the binary tensor data extension."""
