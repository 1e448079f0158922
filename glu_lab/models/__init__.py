"""Whole models: thin Flax Linen shells around the pure functions of `glu_lab.layers`."""

from glu_lab.models.transformer import Transformer, init_params, parameters

__all__ = ["Transformer", "init_params", "parameters"]
