"""The GPU executor: Triton kernels, one file each in ``kernels/``, and what launches them.

``matrices.py`` packs weights, ``steps.py`` makes launches of a program's ops, ``tiles.py`` chooses sizes of
tiles, ``step_batch.py`` brings a batch to the device, ``executor.py`` is the executor.
"""
