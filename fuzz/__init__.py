"""Coverage-guided fuzzing of every parser of untrusted bytes: a module and a corpus folder per target."""
