"""Compiled programs are kept on disk, so that a second start of the same config is quick."""

from __future__ import annotations

import os

import jax

from fedss_jax.data.cache import cache_folder


def keep() -> None:
    """From now on; where JAX_COMPILATION_CACHE_DIR says, or else beside what else is kept."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
