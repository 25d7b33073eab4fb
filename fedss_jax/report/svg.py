"""Figures as SVG that takes its colours from the page around it, light or dark, and stands by itself as a file."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

# What matplotlib is told to draw in, and the names that style sheets know these colours by. The last eight are Okabe
# and Ito's, which colour-blind readers tell apart; on a dark ground they are lighter.
INK, FAINT = "#1f2328", "#8c959f"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
AMBER, SKY = "#e69f00", "#56b4e9"
NAMES = {INK: "ink", FAINT: "faint", BLUE: "blue", ORANGE: "orange", GREEN: "green", PURPLE: "purple"}
NAMES |= {AMBER: "amber", SKY: "sky"}
DARK = {"ink": "#e6edf3", "faint": "#7d8590", "blue": "#58a6e0", "orange": "#f0883e", "green": "#3fc79a"}
DARK |= {"purple": "#e3a3c5", "amber": "#f2b632", "sky": "#8fd0f5"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be found, copied and read aloud
    "svg.hashsalt": "fedss",  # the same figure gives the same file
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


SCALE = 1.5  # pixels a point, where there is room


class Series(NamedTuple):
    """A line of a figure that a page can hide, and whose points it can tell about."""

    label: str
    points: Sequence[str]  # what to say of each marker, in their order


class Drawing(NamedTuple):
    figure: Figure
    about: str  # for those who cannot see it
    series: Sequence[Series] = ()  # artists with the gid "series-i" belong to series i


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def inline(drawing: Drawing) -> str:
    """For an HTML page that defines the colours --ink, --blue and so on."""
    text = _render(drawing.figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style type=.*?</style>", "", text, count=1, flags=re.S)  # it would speak to the whole page
    for colour, name in NAMES.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    text = re.sub(r'id="series-(\d+)"', lambda found: _about_series(drawing.series[int(found[1])], found[1]), text)
    # Figures on one page must not share ids, unless they are the same figure.
    prefix = f"f{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}-"
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    text = re.sub(
        r'width="([\d.]+)pt" height="[\d.]+pt"',
        lambda found: f'style="max-width: {SCALE * float(found[1]):.0f}px"',
        text,
        count=1,
    )
    about = html.escape(drawing.about, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{about}"', 1)


def save(drawing: Drawing, path: Path) -> None:
    """As a file of its own, which follows the reader's choice of light or dark."""
    colours = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    style = f"<style>svg{{font-family:sans-serif}}@media (prefers-color-scheme:dark){{svg{{{colours}}}}}</style>"
    text = inline(drawing)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    width, height = size.groups() if size else ("600", "400")
    text = text.replace("<svg", f'<svg width="{width}" height="{height}"', 1)
    start = text.index(">") + 1
    path.write_text(f"{text[:start]}{style}{text[start:]}")


def _render(figure: Figure) -> str:
    out = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Text is measured with matplotlib's own font, but drawn with the reader's, which has more characters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()


def _about_series(series: Series, number: str) -> str:
    points = html.escape(json.dumps(list(series.points), ensure_ascii=False), quote=True)
    label = html.escape(series.label, quote=True)
    return f'data-series="{number}" data-label="{label}" data-points="{points}"'
