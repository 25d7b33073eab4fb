"""Nothing is unpickled, whoever wrote it, and nothing is fetched unless a config asks for it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from starts import QUICKLY

from configs import sop, tfds

ROOT = Path(__file__).parent.parent
SOURCES = [ROOT / "launch.py", *sorted((ROOT / "fedss_jax").rglob("*.py")), *sorted((ROOT / "configs").rglob("*.py"))]
UNPICKLE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch"}
FETCH = {"urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "huggingface_hub", "fsspec", "socket", "smtplib"}
TALKS = {"fedss_jax/hosts.py": {"socket"}}  # processes of one run, to the coordinator that the command names


def imports(tree: ast.AST) -> set[str]:
    """The packages that a module imports, wherever in it. (urllib.parse only takes addresses apart.)"""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found if name != "urllib.parse"}


def loads_objects(tree: ast.AST) -> bool:
    """Whether allow_pickle is anything but False, or a load may take it by position."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1:
            owner = node.func.value
            if node.func.attr == "load" and isinstance(owner, ast.Name) and owner.id == "np":
                return True
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles_or_fetches(path):
    tree, name = ast.parse(path.read_text()), str(path.relative_to(ROOT))
    assert not imports(tree) & UNPICKLE
    assert not (imports(tree) & FETCH) - TALKS.get(name, set())
    assert not loads_objects(tree)


@pytest.mark.parametrize(
    ("code", "unpickles"),
    [
        ("np.load(a, allow_pickle=True)", True),
        ("np.load(a, None, True)", True),
        ("np.load(a, allow_pickle=b)", True),
        ("np.load(a)", False),
        ("np.load(a, allow_pickle=False)", False),
    ],
)
def test_what_counts_as_unpickling(code, unpickles):
    assert loads_objects(ast.parse(code)) == unpickles
    assert imports(ast.parse("def f():\n  from pickle import loads\n  import os.path")) == {"pickle", "os"}


def test_only_one_place_downloads_and_only_if_it_is_asked():
    places = [path.name for path in SOURCES if ".download_and_prepare(" in path.read_text()]
    assert places == ["records.py"]
    assert not sop.get_config().data.download and not tfds.get_config().data.download


GUARDED = """
import socket, sys
def refuse(self, address, *rest):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"connects to {address}")
    return plain(self, address, *rest)
def look_up(host, *rest, **options):
    if host not in (None, "", "127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"looks up {host}")
    return resolve(host, *rest, **options)
plain, resolve = socket.socket.connect, socket.getaddrinfo
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = look_up
if sys.argv[1] == "probe":
    socket.create_connection(("192.0.2.1", 80), timeout=1)
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def guarded(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XLA_FLAGS": QUICKLY, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", GUARDED, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_a_run_connects_to_nothing(tmp_path):
    assert "AssertionError: looks up 192.0.2.1" in guarded("probe").stderr  # the guard works
    rng, labels = np.random.default_rng(0), np.arange(48) % 8
    np.savez(tmp_path / "train.npz", features=rng.normal(size=(48, 6)), labels=labels)
    settings = [f"--config.data.train={tmp_path}/train.npz", "--config.rounds=2", f"--workdir={tmp_path}/run"]
    done = guarded("launch.py", "--config=configs/arrays.py", *settings)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
