"""One model computed by several processes, of one machine or several (tensor parallelism).

    engine's process, rank 0                      rank 1, 2, ...
    RankedExecutor.submit(batch) --- frames ---->  rank.py: the same step
      its part of the program      <-- shared -->    its part of the program
      sampling                         memory

``graph/divide/`` has the programs. ``factory.py`` starts the ranks, ``executor.py`` is rank 0 and what the
engine sees, ``rank.py`` the loop of the others, ``links.py`` and ``frames.py`` have the messages between
them, and ``cpus.py`` where they run. Of ranks on other machines, ``remote.py`` is rank 0's side,
``elsewhere.py`` is theirs, and ``mesh.py`` has the connections over which rows travel.

The rows of ranks on GPUs go from device to device (``ops/triton/ranks.py``). For them, the shared memory
only says whether a rank has failed.
"""
