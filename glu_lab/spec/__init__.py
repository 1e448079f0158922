"""Plain data, no JAX: what is computed, on what, with which numbers."""

from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN, Branch, Initializer
from glu_lab.spec.variants import VARIANTS, variant

__all__ = ["FFN", "VARIANTS", "Activation", "Branch", "Initializer", "variant"]
