from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from fedss_jax.report import figures, svg
from fedss_jax.report.figures import LOOKS, Curve

SVG = "{http://www.w3.org/2000/svg}"
HISTORY = [{"round": 0, "eval/map10": 0.1, "eval/map10_ceiling": 0.8}] + [
    {"round": r, "train/loss": 3.0 / r, "eval/map10": 0.1 * r, "eval/map10_ceiling": 0.8} for r in range(1, 5)
]
NOISE = [
    {"num_negatives": m}
    | {f"{part}_{kind}": 1 / m for part in ("encoder", "class_matrix") for kind in ("l1", "relative")}
    for m in (5, 10, 20)
]
# That there is no room for it would be a warning, and so an error here.
LONG = "FedSS, faults.dropout=0.3, faults.nan=0.05, faults.scaled=0.05, server.clip_quantile=0.8"
DRAWINGS = {
    "loss": figures.loss(HISTORY),
    "scores": figures.scores(HISTORY, {"eval/map10": "MAP@10"}),
    "traffic": figures.traffic({"a client": (0.3, 0.01), "the whole model": (0.3, 0.5)}),
    "confusion": figures.confusion([[3, 1, 0], [0, 4, 0]], ["猫 & <b>", "$x$ \\frac{"]),
    "difficulty": figures.difficulty([0.1, 0.5, 1.0], "top-1"),
    "noise": figures.gradient_noise(NOISE),
    "share": figures.layer_share({64: {100: 0.1, 10000: 0.5}, 1280: {100: 0.2, 10000: 0.9}}),
    "lines": figures.lines([Curve("a <b>", [1, 2], [0.1, 0.2], [0.01, 0.02])], x="x", y="y", about='"quoted"'),
    "long labels": figures.lines([Curve(f"{LONG} {i}", [1], [0.1]) for i in range(4)], x="x", y="y", about="labels"),
    "dollars": figures.lines([Curve("data.root=$A^$B^", [1], [0.1]), Curve("b", [1], [0.1])], x="x", y="y", about=""),
    "a title with dollars": figures.confusion([[1, 0]], ["a"], "$A^$B^"),
    "long names": figures.traffic({f"{LONG} {i}": (0.3, 0.01) for i in range(4)}),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_figures_are_svg_that_takes_the_pages_colours(name):
    text = svg.inline(DRAWINGS[name])
    drawn = ElementTree.fromstring(text)
    assert drawn.tag == f"{SVG}svg" and drawn.get("aria-label") == DRAWINGS[name].about
    assert "var(--ink, " in text and "<style" not in text
    assert not re.search(rf"(?<!, )({'|'.join(svg.NAMES)})", text), "a colour that a dark page could not change"
    ids = [each.get("id") for each in drawn.iter() if each.get("id")]
    assert ids and all(each.startswith(ids[0][:10]) for each in ids)  # none that another figure could have
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert used <= set(ids)


def test_lines_tell_about_their_points():
    drawing = figures.lines(
        [Curve("FedSS", [25, 50], [0.25, 0.5], [0.01, 0.0], LOOKS["fedss"]), Curve("other", [25], [0.1])],
        x="round",
        y="MAP@10",
        about="",
    )
    drawn = ElementTree.fromstring(svg.inline(drawing))
    groups = [each for each in drawn.iter(f"{SVG}g") if each.get("data-series") == "0"]
    assert len(groups) == 2 and {group.get("data-label") for group in groups} == {"FedSS"}  # the line and its band
    points = json.loads(groups[0].get("data-points"))
    assert points == ["FedSS: MAP@10 0.25 ± 0.01 at round 25", "FedSS: MAP@10 0.5 at round 50"]
    assert max(len(list(group.iter(f"{SVG}use"))) for group in groups) == 2  # a marker for each


def test_names_stay_as_they_are():
    texts = [each.text for each in ElementTree.fromstring(svg.inline(DRAWINGS["confusion"])).iter(f"{SVG}text")]
    assert "猫 & <b>" in texts and any(text and text.startswith("$x$") for text in texts)


def test_axes_say_how_large_things_are():
    """Also where all values lie between two powers of ten, and the usual marks of a logarithmic axis are none."""
    flat = [line | {key: 0.2 + 0.5 / line["num_negatives"] for key in line if key != "num_negatives"} for line in NOISE]
    texts = [each.text for each in ElementTree.fromstring(svg.inline(figures.gradient_noise(flat))).iter(f"{SVG}text")]
    assert "0.3" in texts and "5" in texts


def test_methods_differ_in_more_than_colour():
    looks = [(str(look["linestyle"]), look["marker"]) for look in LOOKS.values()]
    assert len({look["color"] for look in LOOKS.values()}) == len({marker for _, marker in looks}) == len(LOOKS)


def test_a_file_of_its_own_follows_light_and_dark(tmp_path):
    svg.save(DRAWINGS["traffic"], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "prefers-color-scheme:dark" in text and ElementTree.fromstring(text).get("width")
