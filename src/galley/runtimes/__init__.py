"""Engines of models of tensors, which other libraries compute: one file for each library.

:mod:`galley.runtimes.tensor_engine` queues, batches and answers; a library is a
:class:`galley.runtimes.tensor_model.TensorModel` and a loader that is found like any engine's
(:mod:`galley.service.protocol`).
"""
