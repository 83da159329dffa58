"""Engines of models that other libraries compute: one file for each library.

- Tensor models: :mod:`galley.runtimes.tensor_engine` queues, batches and answers; a library is a
  :class:`galley.runtimes.tensor_model.TensorModel`.
- Language models and Whisper: :mod:`galley.runtimes.text_engine` queues; a library is a
  :class:`galley.runtimes.text_runtime.TextRuntime`. llama.cpp is an executor of Galley's engine instead.
- Voices: :mod:`galley.runtimes.voice_engine`.

Loaders are found like those of any engine (:mod:`galley.service.protocol`).
"""
