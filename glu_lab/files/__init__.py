"""Reading and writing: atomic files, Orbax checkpoints."""
