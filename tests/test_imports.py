"""Imports point one way: a module may import those of lower layers, and of its own layer."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fedss_jax"
LAYERS = [
    {"types"},
    {"chips", "lock", "appending", "interrupt"},
    {"losses", "sampling", "parallel", "hosts", "lanes", "faults", "defence", "packing", "command_line", "boards"},
    {"class_matrix", "spreadout", "models", "weights", "data", "report", "metrics"},
    {"methods", "rows"},
    {"crew", "server", "digest"},
    {"checkpoint"},
    {"client"},
    {"round", "centralized", "config", "evaluate"},
    {"feed"},
    {"dispatch", "parts"},
    {"simulation"},
    {"finished"},
    {"analysis"},
    {"train", "plan", "score", "sweep", "export", "compilation"},
]


def layer(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module in names)


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, such as fedss_jax.types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_every_module_has_a_layer_and_imports_only_downwards():
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE]
    assert len(files) > 20
    for path in files:
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in (full.split(".")[1] for full in imported(path) if full.startswith("fedss_jax.")):
            assert layer(other) <= layer(name), f"{path.name} imports {other}, which stands above it"


def test_reports_need_no_jax_and_only_the_loop_knows_configs():
    for path in PACKAGE.rglob("*.py"):
        packages = {full.split(".")[0] for full in imported(path)}
        if path.is_relative_to(PACKAGE / "report"):
            assert "jax" not in packages, path
        if path.is_relative_to(PACKAGE / "analysis"):
            assert not {full for full in imported(path) if full.startswith(("fedss_jax.round", "fedss_jax.train"))}, (
                path
            )
        if path.name not in ("train.py", "plan.py", "score.py", "simulation.py", "parts.py", "config.py"):
            assert "ml_collections" not in packages, path


def test_no_module_takes_more_than_a_sitting():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path
