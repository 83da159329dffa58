"""One model computed by several processes of a machine (tensor parallelism).

    engine's process, rank 0                      rank 1, 2, ...
    ParallelExecutor.submit(batch) -- frames --->  rank.py: the same step
      its part of the program      <-- shared -->    its part of the program
      sampling                         memory

``graph/divide/`` has the programs. ``factory.py`` starts the ranks, ``executor.py`` is rank 0 and what the
engine sees, ``rank.py`` the loop of the others, ``links.py`` and ``frames.py`` have the messages between
them, and ``cpus.py`` where they run.
"""
