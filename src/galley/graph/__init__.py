"""Models as lists of ops: the op table, tracing, passes and the layout of memory."""
