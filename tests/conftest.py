"""Strict JAX settings for every test."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax

# A busy machine is no failure of the code; `make test` bounds the time of all tests together.
hypothesis.settings.register_profile("lab", deadline=None)
hypothesis.settings.load_profile("lab")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
