"""Training in torch (extra ``galley-inference[torch]``): distillation, and training for rounded weights."""
