"""Strict JAX settings for every test."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compilation, and this halves it. `.ci/run` also runs them as users do.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

# Tests of several devices have a process of their own, started by tests/test_eight_devices.py.
devices = os.environ.get("GLU_LAB_TEST_DEVICES")
if devices:
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={devices}"
collect_ignore = [] if devices else ["eight_devices"]

import hypothesis
import jax

# A busy machine is no failure of the code; `make test` bounds the time of all tests together.
hypothesis.settings.register_profile("lab", deadline=None)
hypothesis.settings.load_profile("lab")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
