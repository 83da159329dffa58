"""What is wrong with a machine for serving models, what it costs, what to do; a file a check family."""
