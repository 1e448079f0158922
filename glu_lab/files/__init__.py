"""Reading and writing: tensor files, Orbax checkpoints, atomic files."""
