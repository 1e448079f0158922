"""Evidence that a variant, an execution or a layout is the function that it claims to be."""
