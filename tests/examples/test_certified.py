"""The certified examples load, are tuned on reserved samples, and hold on the digits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from crfl_core import load_config, run
from crfl_core.extend import GroupVotes

FOLDER = Path(__file__).parents[2] / "examples" / "certified"
CONFIGS = sorted([*FOLDER.glob("*-round*.toml"), *FOLDER.glob("*-backdoor.toml")])


def script(name: str) -> ModuleType:
    """Import a script beside the configs."""
    spec = importlib.util.spec_from_file_location(f"certified_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_example_has_a_validation_set_and_asks_about_numbers_of_clients(path: Path) -> None:
    config = load_config(path).config
    assert config.name == path.stem
    assert config.reserve.validation is not None
    assert config.evaluation.radii
    assert config.attack is None
    (certificate,) = config.certificates
    assert certificate.title in ("backdoor", "group-vote", "ensemble", "pathwise-linear")


@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion", "loan"])
@pytest.mark.parametrize("question", ["early-round", "any-round", "every-round"])
def test_every_dataset_is_asked_the_three_questions(dataset: str, question: str) -> None:
    config = load_config(FOLDER / f"{dataset}-{question}.toml").config
    (certificate,) = config.certificates
    if question == "every-round":
        assert certificate.round_scope() == "every"
    else:
        assert config.threat.rounds == ("any" if question == "any-round" else (10,))
        assert certificate.levels == ("client",)
        assert config.dtype == "float64"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_example_lets_one_client_move_the_features_of_another(path: Path) -> None:
    config = load_config(path).config
    assert config.dataset.scaling == "unit-range"
    for feature_map in config.model.features:
        assert getattr(feature_map, "on", "curator") in ("curator", "strokes")


def test_the_groups_of_the_digits_outvote_three_of_ten_whatever_they_say(tmp_path: Path) -> None:
    result = run(FOLDER / "digits-every-round.toml", out=tmp_path / "run")
    (clean,) = (one for one in result.certified if one.test_set == "clean")
    right = clean.guarantee.prediction == clean.labels
    shares = [float((right & (clean.guarantee.radius >= clients)).mean()) for clients in (0, 1, 3)]
    assert shares[0] >= 0.95
    assert shares[1] >= 0.9
    assert shares[2] >= 0.75
    ballots = result.votes(result.certifier.questions[0].request)["clean"].expect(GroupVotes).ballots.copy()
    for attackers in np.random.default_rng(0).permuted(np.tile(np.arange(10), (20, 1)), axis=1)[:, :3]:
        for lie in range(10):
            voted = ballots.copy()
            voted[:, attackers] = lie
            winner = np.apply_along_axis(lambda votes: np.bincount(votes, minlength=10).argmax(), 1, voted)
            stands = clean.guarantee.radius >= 3
            assert (winner == clean.guarantee.prediction)[stands].all()


def test_half_of_the_clients_change_little_in_an_early_round(tmp_path: Path) -> None:
    result = run(FOLDER / "digits-early-round.toml", out=tmp_path / "run")
    (curve,) = (one for one in result.metrics.curves if one.test_set == "clean")
    assert curve.accuracy >= 0.95
    assert curve.certified_accuracy[curve.radii.index(5)] >= 0.93
    assert curve.directions == ("backward", "forward")


def test_half_of_the_clients_change_little_in_any_one_round(tmp_path: Path) -> None:
    result = run(FOLDER / "digits-any-round.toml", out=tmp_path / "run")
    (curve,) = (one for one in result.metrics.curves if one.test_set == "clean")
    assert curve.rounds == "any one of rounds 1..300"
    assert curve.accuracy >= 0.94
    assert curve.certified_accuracy[curve.radii.index(5)] >= 0.88
    assert curve.directions == ("backward", "forward")


def test_one_table_has_all_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["digits-every-round", "--out", str(tmp_path), "--seeds", "0", "1"]
    script("table").main(arguments)
    table = capsys.readouterr().out
    assert "| digits-every-round | ." in table
    assert "| 3 of 10 | ." in table
    certified, collective = next(
        line.strip("| ").split(" | ")[3:5] for line in table.splitlines() if "| 3 of 10 |" in line
    )
    assert float(collective.split()[0]) >= float(certified.split()[0])
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == table
    script("table").main(arguments)  # nothing is trained again
    assert capsys.readouterr().out == table


def test_a_search_sees_no_test_image_and_names_the_best_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = script("search")
    path = FOLDER / "digits-every-round.toml"
    decays = ["training.weight_decay=0.001,0.1"]
    found = list(search.search(path, search.Question(3, None), decays, ["training.steps=20"], tmp_path))
    assert [one.settings for one in found] == [("training.weight_decay=0.001",), ("training.weight_decay=0.1",)]
    assert load_config(tmp_path / "run" / "config.toml").config.dataset.test_samples == 1
    assert found[0].certified > found[1].certified
    search.main([str(path), "--clients", "3", "--set", "training.steps=5"])
    assert capsys.readouterr().out.count("best:") == 1


def test_a_search_asks_about_clients_and_a_trigger_together(tmp_path: Path) -> None:
    search = script("search")
    path = FOLDER / "digits-backdoor.toml"
    weak, strong = (next(search.search(path, search.Question(1, norm), [], [], tmp_path)) for norm in (0.1, 0.5))
    assert weak.accuracy == strong.accuracy > 0.8
    assert weak.certified > strong.certified > 0.2


def test_a_table_lists_clients_beside_triggers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("table").main(["digits-backdoor", "--out", str(tmp_path), "--seeds", "0"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    shares = {row[2]: float(row[3]) for row in rows}
    assert shares["0 of 10, trigger 0.1"] > shares["1 of 10, trigger 0.1"] > shares["1 of 10, trigger 0.25"] > 0.6


def test_attacks_are_measured_once_and_drawn_above_what_is_certified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    arguments = ["digits", "--clients", "10", "--attackers", "3", "--rules", "fedavg", "krum", "--out", str(tmp_path)]
    arguments += ["--attacks", "none", "certificate-seeking", "--set", "training.learning_rate=4"]
    attacked = script("attacked")
    attacked.main(arguments)
    table = capsys.readouterr().out
    cells = {line.split(" | ")[0]: line.strip("| ").split(" | ") for line in table.splitlines()[2:]}
    assert set(cells) == {"| `fedavg`", "| `krum`"}
    assert float(cells["| `fedavg`"][2]) > 0.9 > float(cells["| `fedavg`"][-1]) + 0.2
    monkeypatch.setattr(attacked, "accuracy", None)  # nothing is trained again
    attacked.main(arguments)
    assert capsys.readouterr().out == table
    run(FOLDER / "digits-every-round.toml", out=tmp_path / "digits-every-round-0")
    figure = script("figure")
    monkeypatch.setattr(figure, "CERTIFIED", {"digits-every-round": ("vote of ten", "#0b4f8a", "-")})
    for path in (tmp_path / "one.svg", tmp_path / "two.svg"):
        figure.main(["--runs", str(tmp_path), "--out", str(path)])
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "two.svg").read_text(encoding="utf-8")
    for label in ("vote of ten", "FedAvg, attacked", "Krum, attacked"):
        assert label in drawn
    assert "median" not in drawn


def test_a_search_says_in_one_sentence_which_setting_is_wrong() -> None:
    arguments = [str(FOLDER / "digits-every-round.toml"), "--clients", "3", "--try", "training.learning_rate=1e9"]
    with pytest.raises(SystemExit, match=r"training\.learning_rate: times training\.weight_decay must be at most 1"):
        script("search").main(arguments)
