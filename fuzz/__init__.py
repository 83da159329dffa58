"""Coverage-guided fuzzing of every parser of outside bytes: one file a target, one folder a corpus."""
