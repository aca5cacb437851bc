"""Values mean what they say: text is not a number, a key stands once, and an override names one thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from pydantic import Field, ValidationError

from crfl_core import load_config
from crfl_core.extend import ConfigError, Registry, Table, Tracker

Crfl = Callable[..., CompletedProcess[str]]


class Inner(Table):
    """A table among the options of a plugin."""

    size: int = Field(1, description="how large")


class Options(Tracker):
    """A plugin with options of many types."""

    count: int = Field(1, description="a number")
    shares: tuple[float, ...] = Field((), description="numbers")
    by_name: dict[str, int] = Field({}, description="numbers with names")
    inner: Inner = Field(Inner(), description="a table")
    several: tuple[Inner, ...] = Field((), description="tables")
    flag: bool = Field(True, description="true or false")
    text: str = Field("", description="a text")
    either: int | str = Field(0, description="a number or a text")


REGISTRY = Registry({"options": Options})

TEXT_FOR_NUMBERS = [
    ("rounds = '8'", "rounds = '8': must be an integer: write it without quotes"),
    ("rounds = 'many'", "rounds = 'many': must be an integer"),
    ("training = { weight_decay = '1e-3' }",
     "training.weight_decay = '1e-3': must be a number: write it without quotes"),
    ("training = { learning_rate = [0.1, '0.2'] }",
     "training.learning_rate.1 = '0.2': must be a number: write it without quotes"),
    ("training = { steps = [1, true] }",
     "training.steps.1 = True: must be an integer: true and false are not numbers"),
    ("server = { clip_norm = { start = '1', slope = 0 } }",
     "server.clip_norm.start = '1': must be a number: write it without quotes"),
    ("server = { cap_updates = 1 }", "server.cap_updates = 1: must be true or false"),
    ("server = { cap_updates = 'false' }",
     "server.cap_updates = 'false': must be true or false: write it without quotes"),
    ("attack = { type = 'model-replacement', trigger = { type = 'pixels', size = '3' } }",
     "attack.trigger.size = '3': must be an integer: write it without quotes"),
    ("model = { type = 'softmax', features = [{ type = 'unit-ball', radius = '2' }] }",
     "model.features.0.radius = '2': must be a number: write it without quotes"),
    ("trackers = [{ type = 'options', count = '1' }]",
     "trackers.0.count = '1': must be an integer: write it without quotes"),
    ("trackers = [{ type = 'options', shares = [0.5, '.5'] }]", "trackers.0.shares.1 = '.5': must be a number"),
    ("trackers = [{ type = 'options', by_name = { a = '1' } }]",
     "trackers.0.by_name.a = '1': must be an integer: write it without quotes"),
    ("trackers = [{ type = 'options', inner = { size = '1' } }]",
     "trackers.0.inner.size = '1': must be an integer: write it without quotes"),
    ("trackers = [{ type = 'options', several = [{}, { size = true }] }]",
     "trackers.0.several.1.size = True: must be an integer: true and false are not numbers"),
    ("trackers = [{ type = 'options', flag = 'true' }]",
     "trackers.0.flag = 'true': must be true or false: write it without quotes"),
    ("name = 3", "name = 3: must be a string: write it in quotes"),
    ("trackers = [{ type = 'options', text = 1.5 }]",
     "trackers.0.text = 1.5: must be a string: write it in quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), TEXT_FOR_NUMBERS, ids=[text for text, _ in TEXT_FOR_NUMBERS])
def test_text_is_no_number_and_a_number_no_text(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as stop:
        load_config(path, registry=REGISTRY)
    assert str(stop.value) == f"{path}: {sentence}"


@pytest.mark.parametrize(
    ("options", "read", "expected"),
    [
        ("count = 1e3", "count", 1000),  # a whole number, however it is written
        ("shares = [1, 0.5]", "shares", (1.0, 0.5)),
        ("either = '8'", "either", "8"),
        ("either = 8", "either", 8),
        ("text = '8'", "text", "8"),
        ("several = [{ size = 2 }]", "several", (Inner(size=2),)),
    ],
)
def test_what_is_right_stays_right(tmp_path: Path, options: str, read: str, expected: object) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[[trackers]]\ntype = 'options'\n{options}\n")
    (tracker,) = load_config(path, registry=REGISTRY).config.trackers
    value = getattr(tracker, read)
    assert (value, type(value)) == (expected, type(expected))


def test_python_code_is_held_to_the_same() -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        Options(count="8")


def test_overrides_are_numbers_unless_they_are_quoted() -> None:
    assert load_config({}, overrides=["rounds=8"]).config.rounds == 8
    with pytest.raises(ConfigError, match=r"^--set rounds='8': rounds = '8': must be an integer: write it without"):
        load_config({}, overrides=["rounds='8'"])


class TestYaml:
    @pytest.fixture
    def load(self, tmp_path: Path) -> Callable[[str], Any]:
        def load_text(text: str) -> Any:
            (tmp_path / "run.yaml").write_text(text)
            return load_config(tmp_path / "run.yaml").config

        return load_text

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("rounds: 3\nseed: 1\nrounds: 4\n", "line 3: rounds: stands twice, first in line 1: keep one of them"),
            ("training:\n  steps: 1\n  batch_size: 8\n  'steps': 2\n", "line 4: steps: stands twice, first in line 2"),
            ("training: {steps: 1, steps: 1}\n", "line 1: steps: stands twice, first in line 1"),
            ("trackers:\n  - type: jsonl\n    path: a\n    path: b\n", "line 4: path: stands twice, first in line 3"),
        ],
    )
    def test_a_key_that_stands_twice_is_an_error(self, load: Callable[[str], Any], text: str, sentence: str) -> None:
        with pytest.raises(ConfigError, match=rf"run\.yaml: {sentence}"):
            load(text)

    def test_what_a_merge_key_brings_along_may_be_replaced(self, load: Callable[[str], Any]) -> None:
        trackers = load("trackers:\n  - &one {type: jsonl, path: a}\n  - {<<: *one, path: b}\n").trackers
        assert [tracker.path for tracker in trackers] == ["a", "b"]

    @pytest.mark.parametrize("number", ["1e-3", "1E-3", "1.0e-3", "0.001"])
    def test_numbers_in_scientific_notation_are_numbers(self, load: Callable[[str], Any], number: str) -> None:
        assert load(f"training: {{weight_decay: {number}}}\n").training.weight_decay == 0.001

    def test_numbers_in_quotes_are_text(self, load: Callable[[str], Any]) -> None:
        with pytest.raises(ConfigError, match=r"run\.yaml: rounds = '8': must be an integer: write it without quotes"):
            load('rounds: "8"\n')


class TestOverridesOfItems:
    TWO = {"trackers": [{"type": "jsonl", "path": "a"}, {"type": "jsonl", "path": "b"}, "progress"]}

    def test_one_of_two_equal_names_is_not_guessed(self) -> None:
        with pytest.raises(ConfigError) as stop:
            load_config(self.TWO, overrides=["trackers.jsonl.path=c"])
        assert str(stop.value) == (
            "--set trackers.jsonl.path=c: trackers has 2 items called 'jsonl': choose one by its position, "
            "trackers.0.path or trackers.1.path"
        )
        trackers: Any = load_config(
            self.TWO, overrides=["trackers.1.path=c", "trackers.progress.seconds=9"]
        ).config.trackers
        assert [trackers[0].path, trackers[1].path, trackers[2].seconds] == ["a", "c", 9]

    def test_a_name_of_its_own_tells_two_of_a_type_apart(self) -> None:
        certificates = {"certificates": ["paper", {"type": "paper", "name": "other"}]}
        config = load_config(certificates, overrides=["certificates.paper.votes.models=7"]).config
        assert [certificate.votes.models for certificate in config.certificates] == [7, None]

    def test_two_of_a_type_with_names_are_not_guessed_by_type(self) -> None:
        certificates = {"certificates": [{"type": "paper", "name": "one"}, {"type": "paper", "name": "two"}]}
        with pytest.raises(
            ConfigError, match=r"choose one by its position, certificates\.0\.levels or certificates\.1\.levels"
        ):
            load_config(certificates, overrides=['certificates.paper.levels=["feature"]'])


@pytest.mark.parametrize(
    ("override", "what", "reason"),
    [
        ('aggregation=[{type="krum", f=1}', "an array", "Unclosed array"),
        ('aggregation=[{type="krum", f=1]', "an array", "Unclosed inline table"),
        ("aggregation=[krum]", "an array", "Invalid value"),
        ("attack={type=none}", "a table", "Invalid value"),
        ('name="half', "a text in quotes", "Unterminated string"),
        ("name='half", "a text in quotes", "Expected"),
    ],
)
def test_a_value_that_begins_like_toml_and_is_none_is_said_to_be_that(override: str, what: str, reason: str) -> None:
    with pytest.raises(ConfigError) as stop:
        load_config(overrides=[override])
    assert str(stop.value).startswith(f"--set {override}: begins like {what} of TOML and is none: {reason}")
    assert str(stop.value).endswith("; in a shell, put single quotes around it all")


class TestMissing:
    SOURCE = """
from pydantic import Field
from crfl_core.extend import Tracker

class Needs(Tracker):
    target: str = Field(description="folder to write to")
"""

    @pytest.fixture(autouse=True)
    def _needs(self, install: Callable[..., None]) -> None:
        install("needy-tools", "1.0", {"crfl.trackers": {"needs": "Needs"}}, self.SOURCE)

    def test_an_option_that_is_missing_is_described_with_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text("trackers = ['jsonl', 'needs']\n")
        with pytest.raises(ConfigError) as stop:
            load_config(tmp_path / "run.toml")
        assert str(stop.value) == (
            f"{tmp_path / 'run.toml'}: trackers.1.target: is missing, and has no default: folder to write to"
        )

    def test_the_kit_says_whose_option_it_is(self, crfl: Crfl) -> None:
        result = crfl("plugins", "check", "needs")
        assert (result.returncode, result.stderr) == (
            2,
            "error: tracker 'needs' of needy-tools 1.0: target: is missing, and has no default: folder to write to "
            "(options are given with --set)\n",
        )
        wrong = crfl("plugins", "check", "needs", "--set", "target=3")
        assert "tracker 'needs' of needy-tools 1.0: target = 3: must be a string: write it in quotes" in wrong.stderr


def test_defaults_of_a_plugin_that_was_only_named_are_defaults(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        "dataset = 'digits'\naggregation = ['norm-bound', { type = 'krum', f = 2 }]\n"
        "[model]\ntype = 'softmax'\nfeatures = 'unit-ball'\n"
    )
    result = crfl(
        "explain", "mine.toml", "--set", "certificates=['paper']", "--set", 'engine={type="local", threads=1}'
    )
    origins = {line.split(" = ")[0]: line.split("  # ")[1] for line in result.stdout.splitlines()}
    assert result.returncode == 0
    for key in ("dataset.type", "aggregation.0.type", "aggregation.1.type", "aggregation.1.f", "model.features.0.type"):
        assert origins[key] == "mine.toml", key
    for key in ("dataset.scaling", "aggregation.0.bound", "model.features.0.radius", "certificates.0.votes"):
        assert origins[key] == "default", key
    assert origins["certificates.0.type"] == "--set certificates=['paper']"
    assert origins["engine.threads"] == '--set engine={type="local", threads=1}'
