"""Extensions of Triton that are refused by name."""
