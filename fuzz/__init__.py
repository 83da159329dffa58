"""Coverage-guided fuzzing of every parser of untrusted bytes: a file per target, a folder per corpus."""
