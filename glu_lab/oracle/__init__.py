"""The FFN once more in float64 NumPy, sharing no code with the layers that it judges."""
