"""What a model and a run are made of and need: parameters, memory, FLOPs."""
