"""The GPU executor: Triton kernels, in files of ``kernels/``, and the code that launches them.

``packing.py`` packs weights for ``matrices.py``, ``steps.py`` turns a program's ops into launches,
``tiles.py`` chooses tile sizes, ``step_batch.py`` copies a batch to the device, and ``executor.py`` is the
executor.
"""
