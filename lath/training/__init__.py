"""From prepared text to checkpoints: batches, objective, loop, validation, log."""
