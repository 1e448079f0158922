"""Optimisers, the compiled step, evaluation, telemetry, checkpoints and the loop."""
