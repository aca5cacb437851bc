"""The classes of every client: as numbers in metrics.json, and as a figure."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from crfl_reports.figures import image_of
from crfl_reports.gallery.training import partition_files
from numpy.typing import NDArray

import crfl_core
from crfl_core import ClassHistogram, class_histogram, partition_figure
from crfl_core.extend import ConfigError
from crfl_core.reporting.csv_files import metrics_json
from tests.oracle import contents, federation_of, tiny


def made(clients: int, classes: int, names: tuple[str, ...] = (), class_names: tuple[str, ...] = ()) -> ClassHistogram:
    """A histogram with every other cell empty."""
    counts = [[(label * clients + client) % 2 * (client + 1) for client in range(clients)] for label in range(classes)]
    known = class_names or tuple(f"class {label}" for label in range(classes))
    return ClassHistogram(classes=known, clients=names, counts=tuple(map(tuple, counts)))


def texts(svg: bytes) -> list[str]:
    """Every text of an SVG file, in order."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def pixels(histogram: ClassHistogram) -> NDArray[np.float32]:
    """The PNG as an array, (height, width, 4)."""
    return np.asarray(matplotlib.image.imread(io.BytesIO(image_of(partition_figure(histogram), "png"))))


class TestHistogram:
    def test_it_counts_the_samples_of_each_class_and_client(self) -> None:
        labels = np.array([0, 2, 2, 1, 2, 0])
        partition = [np.array([0, 1, 2]), np.array([5, 4, 3])]
        histogram = ClassHistogram.of(labels, partition, ("a", "b", "c"), ("x", "y"))
        assert histogram.counts == ((1, 1), (0, 1), (2, 1))
        assert (histogram.classes, histogram.clients, histogram.sizes) == (("a", "b", "c"), ("x", "y"), (3, 3))

    def test_a_class_without_samples_has_a_row_of_zeros(self) -> None:
        histogram = ClassHistogram.of(np.array([1, 1]), [np.array([0]), np.array([1])], ("a", "b", "c"))
        assert histogram.counts == ((0, 0), (1, 1), (0, 0))

    def test_a_config_has_one_before_anything_is_trained(self) -> None:
        data = federation_of(tiny()).data
        histogram = class_histogram(tiny(), overrides=["rounds=1000000"])
        assert histogram.sizes == tuple(map(len, data.partition))
        for client, rows in enumerate(data.partition):
            held = np.bincount(data.y[rows].numpy(), minlength=10)
            np.testing.assert_array_equal([of_class[client] for of_class in histogram.counts], held)

    def test_a_split_that_is_impossible_is_refused_with_its_key(self) -> None:
        with pytest.raises(ConfigError, match=r"partition\.clients: found 301, but there are only 300"):
            class_histogram(tiny(), overrides=["partition.clients=301"])

    def test_metrics_json_stays_small_and_leaves_names_alone(self, finished_run: Path) -> None:
        metrics = crfl_core.load(finished_run).metrics
        many = made(2000, 10, class_names=tuple(f"[ {n}, {n}\n]" for n in range(10)))
        text = metrics_json(metrics.model_copy(update={"partition": many}))
        assert json.loads(text)["partition"] == json.loads(many.model_dump_json())
        assert len(text) < 200_000
        assert len(text.splitlines()) < 1000

    def test_metrics_json_has_a_line_per_class(self, finished_run: Path) -> None:
        text = (finished_run / "metrics.json").read_text()
        rows = json.loads(text)["partition"]["counts"]
        assert np.shape(rows) == (10, 50)
        for row in rows:
            assert f"      {json.dumps(row)}" in text.splitlines() or f"      {json.dumps(row)}," in text.splitlines()
        partition = crfl_core.load(finished_run).metrics.partition
        assert partition == class_histogram(finished_run / "config.toml")


class TestFigure:
    def test_every_class_and_client_is_named(self) -> None:
        states = tuple(f"state {number}" for number in range(51))
        histogram = made(51, 9, states)
        shown = texts(image_of(partition_figure(histogram), "svg"))
        assert [text for text in shown if text.startswith("state")] == list(states)
        assert [text for text in shown if text.startswith("class ")] == list(histogram.classes)
        assert f"{sum(histogram.sizes):,} training samples of 9 classes at 51 clients" in shown

    def test_few_clients_are_numbered_and_their_counts_written_out(self) -> None:
        histogram = made(4, 3)
        shown = texts(image_of(partition_figure(histogram), "svg"))
        positive = [str(count) for of_class in histogram.counts for count in of_class if count]
        written = list(shown)
        for text in ("0", "1", "2", "3", *positive):
            written.remove(text)

    def test_many_clients_are_sorted_instead_of_named(self) -> None:
        shown = texts(image_of(partition_figure(made(1000, 10, tuple(f"writer {n}" for n in range(1000)))), "svg"))
        assert not any(text.startswith("writer") for text in shown)
        assert "clients, the largest first" in shown
        assert "clients, by their most frequent class" in shown

    @pytest.mark.parametrize(("clients", "classes"), [(1, 1), (20, 10), (60, 2), (61, 47), (2000, 10), (3, 150)])
    def test_the_picture_has_a_sensible_size_and_is_not_blank(self, clients: int, classes: int) -> None:
        image = pixels(made(clients, classes) if clients > 1 else made(1, 1).model_copy(update={"counts": ((7,),)}))
        height, width, _ = image.shape
        assert 300 <= height <= 1600
        assert 700 <= width <= 1900
        dark = image[..., :3].mean(axis=2) < 0.6
        assert 0.01 < dark.mean() < 0.7
        border = np.concatenate([dark[0], dark[-1], dark[:, 0], dark[:, -1]])
        assert not border.any()  # nothing is cut off

    def test_names_are_shown_as_they_are_and_long_ones_shortened_in_the_middle(self) -> None:
        names = ("costs $5 to $10", "Does not meet the credit policy. Status:Fully Paid", "<&>", "手書き", "a\nb\x00")
        shown = texts(image_of(partition_figure(made(3, 5, class_names=names)), "svg"))
        assert {"costs $5 to $10", "Does not me…s:Fully Paid", "<&>", "手書き", "a b "} <= set(shown)

    def test_very_uneven_counts_get_a_logarithmic_scale(self) -> None:
        histogram = ClassHistogram(classes=("a", "b"), clients=(), counts=((1, 1, 1), (1, 1, 100_000)))
        shown = texts(image_of(partition_figure(histogram), "svg"))
        assert {"10", "1,000", "100,000"} <= set(shown)

    @pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
    def test_the_same_histogram_gives_the_same_bytes(self, suffix: Any) -> None:
        figure = partition_figure(made(5, 3))
        assert image_of(figure, suffix) == image_of(figure, suffix) == image_of(partition_figure(made(5, 3)), suffix)

    def test_settings_of_the_user_are_neither_read_nor_changed(self) -> None:
        usual = image_of(partition_figure(made(5, 3)), "svg")
        with matplotlib.rc_context({"font.size": 30.0}):
            assert image_of(partition_figure(made(5, 3)), "svg") == usual
            assert matplotlib.rcParams["font.size"] == 30.0


class TestRunDirectory:
    def test_the_formats_can_be_chosen(self, tmp_path: Path) -> None:
        chosen = crfl_core.run(tiny(storage={"figures": ["pdf"]}), out=tmp_path / "run")
        assert [path.name for path in (chosen.path / "figures").iterdir()] == ["partition.pdf"]
        assert (chosen.path / "figures" / "partition.pdf").read_bytes().startswith(b"%PDF")

    def test_no_formats_no_figures(self, tmp_path: Path) -> None:
        result = crfl_core.run(tiny(storage={"figures": []}), out=tmp_path / "run")
        assert not (result.path / "figures").exists()
        assert partition_files(result.metrics.partition, ()) == {}

    def test_they_show_the_partition_of_metrics_json(self, finished_run: Path) -> None:
        files = contents(finished_run)
        drawn = partition_files(crfl_core.load(finished_run).metrics.partition, ("svg", "png"))
        assert files["figures/partition.svg"] == drawn["svg"]
        assert files["figures/partition.png"] == drawn["png"]

    def test_show_says_where_they_are(self, finished_run: Path, crfl: Any) -> None:
        shown = crfl("show", "--full", finished_run).stdout
        assert f"figures: {finished_run}/figures/partition.png, {finished_run}/figures/partition.svg" in shown
        assert "training samples of a client" in shown


def test_matplotlib_is_only_imported_to_draw() -> None:
    code = "import sys, crfl_core; crfl_core.partition_figure; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
