"""Compiled programs are kept on disk, so that a second start of the same config is quick."""

from __future__ import annotations

import jax

from fedss_jax.data.cache import cache_folder


def keep() -> None:
    """From now on. Does nothing if JAX_COMPILATION_CACHE_DIR or the like says where they go."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
