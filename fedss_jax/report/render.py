"""Pages in one file: style, script, figures and pictures are all in it, and it asks nobody for anything."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

import fedss_jax
from fedss_jax.report import svg
from fedss_jax.report.configs import flat

PAGE = "report.html"


class Shown(NamedTuple):
    """A drawing as the templates take it."""

    svg: Markup
    caption: str
    series: Sequence[svg.Series]


class Tile(NamedTuple):
    name: str
    value: str
    note: str = ""


@functools.cache
def _templates() -> jinja2.Environment:
    """All that is filled in is escaped, unless it is marked as ours."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedss_jax.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shown(drawing: svg.Drawing, caption: str = "", *, toggles: bool = False) -> Shown:
    return Shown(Markup(svg.inline(drawing)), caption, drawing.series if toggles else ())


def picture(path: Path) -> str:
    """A picture's file as an address that holds it."""
    return "data:image/webp;base64," + base64.b64encode(path.read_bytes()).decode()


def settings(config: Mapping[str, Any]) -> list[list[str]]:
    return [[key, json.dumps(value, ensure_ascii=False)] for key, value in sorted(flat(dict(config)).items())]


def write(folder: Path, template: str, **values: Any) -> Path:
    """The page of a run's or a sweep's folder; whole, or as it was before."""
    environment = _templates()
    loader: Any = environment.loader
    own = {name: Markup(loader.get_source(environment, name)[0]) for name in ("style.css", "page.js")}
    text = environment.get_template(template).render(
        style=own["style.css"], script=own["page.js"], version=fedss_jax.__version__, **values
    )
    temporary = folder / f".{PAGE}.tmp"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, folder / PAGE)
    return folder / PAGE
