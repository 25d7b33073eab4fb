from __future__ import annotations

import csv
import json

import pytest

from configs import imagenet21k, landmarks, sop
from configs.sweeps import overfitting
from fedss_jax.config import resolve
from fedss_jax.report import configs, paper, tables
from fedss_jax.report.tables import Row, Score

ROWS = [
    Row("before training", "", {"eval/map10": Score((0.1, 0.2))}, None, [], {}),
    Row("FedSS, m = 5", "fedss", {"eval/map10": Score((0.25, 0.27), paper.Figure(0.252, 0.002))}, 25.0, ["a", "b"], {}),
    Row("Full_1", "fullsoftmax", {"eval/map10": Score((0.3, 0.4), None, show_best=True)}, 200.0, ["c", "d"], {}),
    Row("NegOnly", "", {}, None, [], {"x": "error: 100 % |wrong|"}),
]


def test_markdown():
    assert tables.markdown(ROWS).splitlines() == [
        "|  | MAP@10 | paper | classes a client receives | seeds | failed |",
        "|---|---|---|---|---|---|",
        "| before training | 0.150 ± 0.071 |  |  | 2 |  |",
        "| FedSS, m = 5 | 0.260 ± 0.014 | 0.252 ± 0.002 | 25 | 2 |  |",
        "| Full_1 | 0.350 ± 0.071 (best 0.400) |  | 200 | 2 |  |",
        "| NegOnly | – |  |  | 0 | x: error: 100 % \\|wrong\\| |",
    ]


def test_comma_separated_numbers_come_back():
    lines = list(csv.DictReader(tables.comma_separated(ROWS).splitlines()))
    assert [line["row"] for line in lines] == ["before training", "FedSS, m = 5", "Full_1", "NegOnly"]
    assert float(lines[1]["eval/map10 mean"]) == pytest.approx(0.26)
    assert float(lines[1]["eval/map10 paper_std"]) == 0.002 and lines[2]["eval/map10 paper"] == ""
    assert float(lines[2]["eval/map10 best"]) == 0.4 and lines[3]["eval/map10 mean"] == ""
    assert lines[3]["failed"] == "x: error: 100 % |wrong|"


def test_latex_is_escaped():
    made = tables.latex(ROWS)
    assert r"Full\_1 & 0.350 $\pm$ 0.071 (best 0.400) &  & 200 & 2 &  \\" in made
    assert r"100 \% \textbar{}wrong\textbar{}" in made and made.startswith(r"\begin{tabular}{lccccc}")


def test_rows_are_read_from_what_cells_left(tmp_path):
    cells = [{"name": f"fedss-{seed}", "row": "FedSS", "settings": {}} for seed in (0, 1, 2)]
    config = json.dumps(resolve(sop.get_config()).to_dict())
    for seed in (0, 1):
        folder = tmp_path / f"fedss-{seed}"
        folder.mkdir()
        (folder / "config.json").write_text(config)
        final = {"eval/map10": 0.2 + 0.1 * seed, "train/top1": 0.9, "comm/classes": 7.0}
        summary = {"method": "fedss", "seed": seed, "start": {"eval/map10": 0.1, "train/top1": 0.0}, "final": final}
        summary["communication"] = {"comm/classes": 90.0 + 20 * seed}
        (folder / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": cells, "failed": {"fedss-2": "died"}}))
    start, row = tables.read(tmp_path)
    assert start.scores["eval/map10"].values == (0.1, 0.1)
    assert row.scores["eval/map10"].mean == pytest.approx(0.25)
    assert row.received == 100 and row.done == ["fedss-0", "fedss-1"]  # a mean over rounds and seeds
    assert row.failed == {"fedss-2": "died"} and row.scores["train/top1"].paper == paper.Figure(0.976, 0.002)


def test_rows_may_differ_in_where_they_began_and_in_what_they_are_scored_by(tmp_path):
    cells = [{"name": name, "row": name, "settings": {"data.task": name}} for name in ("map10", "top1")]
    for name, start in (("map10", 0.1), ("top1", 0.6)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        key = f"eval/{name}"
        summary = {"method": "mine", "seed": 0, "start": {key: start}, "final": {key: 0.7}, "communication": {}}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": cells, "failed": {}}))
    assert tables.markdown(tables.read(tmp_path)).splitlines() == [
        "|  | MAP@10 | top-1 | classes a client receives | seeds |",
        "|---|---|---|---|---|",
        "| map10 | 0.700 | – | – | 1 |",
        "| top1 | – | 0.700 | – | 1 |",
    ]


def test_the_papers_figures_stand_only_beside_its_own_settings():
    config = resolve(sop.get_config()).to_dict()
    assert paper.look_up(config)["eval/map10"] == paper.Figure(0.265, 0.0003)
    assert paper.look_up(resolve(overfitting.get_config()).to_dict())["train/top1"].mean == 0.976
    assert str(paper.look_up(config | {"method": "fullsoftmax"})["eval/map10"]) == "0.257 (best)"
    assert str(paper.look_up(resolve(landmarks.get_config()).to_dict())["eval/top1"]) == "0.5600 ± 0.0006"
    for key, value in {
        "rounds": 100,
        "num_negatives": 81,
        "extra_negatives": True,
        "data.name": "standin",
        "data.crop": 32,
        "init_from": "",
        "faults.dropout": 0.5,
        "deadline": 0.5,
        "server.clip_norm": 0.01,
        "model.options.depth": 2,
        "centralized.updates_per_round": 1,
    }.items():
        changed = sop.get_config()
        changed.update_from_flattened_dict({key: value})
        assert paper.look_up(changed.to_dict()) == {}, key
    assert str(paper.look_up(config)["eval/map10"]) == "0.2650 ± 0.0003"


@pytest.mark.parametrize("file", [sop, landmarks, imagenet21k])
def test_of_every_key_is_known_whether_the_paper_sets_it(file):
    config = configs.flat(resolve(file.get_config()).to_dict())
    (experiment,) = (each for each in paper.EXPERIMENTS if each.setting["data.name"] == config["data.name"])
    unknown = [key for key in config if key not in experiment.setting and not key.startswith(paper.FREE)]
    assert unknown == [] and not [key for key in experiment.setting if key not in config]
