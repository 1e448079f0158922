"""Pure functions over dicts of arrays."""
