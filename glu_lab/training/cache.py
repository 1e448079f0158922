"""The persistent compilation cache: a program compiled once is loaded by later processes."""

import os
from pathlib import Path

import jax

from glu_lab.data.cache import cache_root


def enable_compilation_cache() -> Path:
    """Turns the cache on, under the same root as the data cache, unless the user set one.

    Returns:
        Its folder.
    """
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = Path(given) if given else cache_root(None) / "xla"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    return folder
