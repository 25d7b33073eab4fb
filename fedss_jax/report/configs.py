"""Configs as plain keys and values."""

from __future__ import annotations

from typing import Any


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"eval": {"every": 5}} -> {"eval.every": 5}"""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        path: leaf
        for key, value in tree.items()
        for path, leaf in flat(value, f"{prefix}.{key}" if prefix else key).items()
    }
