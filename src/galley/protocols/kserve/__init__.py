"""KServe's inference protocol, version 1, which is TensorFlow Serving's REST API."""
