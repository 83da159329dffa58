"""KServe's inference protocol, version 1: ``/v1/models/{model}:predict``."""
