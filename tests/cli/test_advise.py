"""`crfl advise`: every answer becomes a config that runs, and its certificate stands the attack in question."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from crfl_core import RunResult, load_config, run
from crfl_core.cli.advice import (
    RECIPES,
    Answers,
    ModelKind,
    When,
    choose_certificate,
    config_text,
    parse_clients,
)
from crfl_core.cli.own_data import AdviceError

Crfl = Callable[..., CompletedProcess[str]]
Advised = Callable[[When, ModelKind], RunResult]
WHEN: tuple[When, ...] = ("one-early", "any", "every")
QUIET = ["storage.figures=[]"]


def config(when: When, model: ModelKind, clients: str = "5 of 20", dataset: str = "digits") -> dict[str, Any]:
    attackers, total = parse_clients(clients)
    answers = Answers(attackers=attackers, clients=total, when=when, model=model, dataset=dataset)
    return tomllib.loads(config_text(answers, choose_certificate(answers), "advice"))


def quicker(asked: dict[str, Any]) -> dict[str, Any]:
    """The same with fewer rounds if there are very many."""
    return asked | {"rounds": min(asked["rounds"], 300)}


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Advised:
    """Runs what is advised against 5 of 20 clients, each config once."""

    @cache
    def trained(when: When, model: ModelKind) -> RunResult:
        return run(quicker(config(when, model)), overrides=QUIET, out=tmp_path_factory.mktemp("advised") / "run")

    return trained


def certified(result: RunResult, number: int) -> Any:
    """Which test samples are certified against this number of clients, and their predictions."""
    (answer,) = [one for one in result.certified if one.test_set == "clean"]
    assert answer.level == "client"
    assert set(answer.directions) == {"backward", "forward"}
    return answer.guarantee.radius >= number, answer.guarantee.prediction, answer.labels


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("model", ["linear", "network"])
def test_every_answer_runs_and_certifies_most_digits(advised: Advised, when: When, model: ModelKind) -> None:
    result = advised(when, model)
    assert not result.metrics.refused
    safe, prediction, labels = certified(result, 5)
    assert (safe & (prediction == labels)).mean() > 0.75


@pytest.mark.parametrize("when", WHEN)
def test_what_is_certified_does_not_change_when_the_attack_comes(advised: Advised, when: When, tmp_path: Path) -> None:
    asked = quicker(config(when, "linear"))
    first, last = {"one-early": (1, 10), "any": (298, 298), "every": (1, asked["rounds"])}[when]
    attack = {
        "type": "sign-flip",
        "clients": [0, 4, 9, 13, 19],
        "rounds": {"first": first, "last": last},
        "scale": 20.0,
    }
    attacked = run({**asked, "attack": attack}, overrides=QUIET, out=tmp_path / "attacked")
    safe, before, _ = certified(advised(when, "linear"), 5)
    _, after, _ = certified(attacked, 5)
    assert safe.mean() > 0.75
    assert (before == after)[safe].all()


@pytest.mark.parametrize("dataset", [*RECIPES, "synthetic"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("model", ["linear", "network"])
def test_there_is_a_config_for_every_dataset(dataset: str, when: When, model: ModelKind) -> None:
    loaded = load_config(config(when, model, "5", dataset)).config
    assert loaded.dataset.configured_as == dataset
    assert (
        loaded.model.configured_as == "softmax" if model == "linear" else loaded.model.configured_as in ("mlp", "cnn")
    )


@pytest.mark.parametrize(
    ("clients", "groups"), [("1 of 20", 20), ("5 of 100", 50), ("40 of 100", 100), ("2 of 10", 10)]
)
def test_there_are_ten_groups_for_each_attacker_if_there_are_clients_for_them(clients: str, groups: int) -> None:
    assert config("every", "linear", clients)["groups"]["count"] == groups


def test_owners_of_data_are_clients_and_groups() -> None:
    asked = config("every", "linear", "5", "loan")
    assert asked["groups"] == {"by": "natural"}
    assert asked["partition"] == {"type": "natural"}


def test_named_attackers_are_the_only_candidates(tmp_path: Path) -> None:
    asked = config("every", "network", "0,3 of 8")
    assert asked["threat"] == {"clients": [0, 3]}
    assert asked["certificates"] == [{"type": "group-vote", "candidates": "named"}]
    result = run(asked, overrides=[*QUIET, "rounds=2"], out=tmp_path / "run")
    assert result.certified[0].guarantee.radius.max() <= 2


@pytest.mark.parametrize(("when", "least"), [("one-early", 0.9), ("any", 0.5)])
def test_more_than_half_of_all_clients_stand_in_a_few_rounds(when: When, least: float, tmp_path: Path) -> None:
    result = run(quicker(config(when, "linear", "15 of 20")), overrides=QUIET, out=tmp_path / "run")
    safe, prediction, labels = certified(result, 15)
    assert (safe & (prediction == labels)).mean() > least


@pytest.mark.parametrize(
    ("when", "model", "clients", "sentence"),
    [
        ("every", "linear", "10 of 20", "half of all outvote the others: assume fewer"),
        ("one-early", "network", "10 of 20", "--when any --model linear"),
        ("every", "linear", "0 of 20", "found 0 of 20: from 1 to 20 of them may attack"),
        ("every", "linear", "2 of 0", "found 2 of 0"),
        ("every", "linear", "3,20 of 20", "there is no client 20: the ids of 20 clients are 0 to 19"),
    ],
)
def test_answers_without_advice_get_a_sentence(when: When, model: ModelKind, clients: str, sentence: str) -> None:
    with pytest.raises(AdviceError, match=sentence):
        config(when, model, clients)


def test_one_attacker_submits_and_several_submit() -> None:
    def statement(clients: str) -> str:
        attackers, total = parse_clients(clients)
        return choose_certificate(Answers(attackers=attackers, clients=total, when="every", model="linear")).statement

    assert "whatever any 1 of 20 clients submits in every round" in statement("1 of 20")
    assert "whatever client 3 submits in every round" in statement("3, of 20")
    assert "whatever clients 0 and 3 submit in every round" in statement("0,3 of 20")


def test_a_number_of_owners_that_the_data_do_not_have_is_refused() -> None:
    with pytest.raises(AdviceError, match="'loan' have 51 owners, each of whom is a client: write '5 of 51'"):
        config("every", "linear", "5 of 20", "loan")


@pytest.mark.parametrize("text", ["", "five", "-1 of 20", "1.5", "5 of", "3,,4", "5 of 20 of 30", "5 of 99999999999"])
def test_clients_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(AdviceError, match="needs a number, such as '5 of 20'"):
        parse_clients(text)


def test_the_command_writes_a_file_and_says_what_it_will_state(crfl: Crfl, tmp_path: Path) -> None:
    flags = ("--clients", "5 of 20", "--when", "every", "--model", "linear", "--out", "mine.toml")
    outcome = crfl("advise", *flags)
    assert outcome.returncode == 0
    assert "mine.toml: group-vote" in outcome.stdout
    assert "whatever any 5 of 20 clients submit in every round" in outcome.stdout
    assert load_config(tmp_path / "mine.toml").config.name == "mine"
    again = crfl("advise", *flags)
    assert (again.returncode, again.stderr) == (2, "error: mine.toml exists already: name another file with --out\n")


def test_without_flags_it_asks_and_checks_each_answer(
    crfl: Crfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["", "three of twenty", "30 of 20", "5 of 20", "sometimes", "one-early", "linear", "different"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*answers, ""])))
    outcome = crfl("advise")
    assert outcome.returncode == 0, outcome.stderr
    for question in ("Your data", "Which clients may attack?", "When?", "What do you train?", "the same classes?"):
        assert question in outcome.stdout
    assert "'three of twenty': needs a number, such as '5 of 20'" in outcome.stdout
    assert "found 30 of 20: from 1 to 20 of them may attack" in outcome.stdout
    assert "found 'sometimes': answer one-early, any, every" in outcome.stdout
    assert load_config(tmp_path / "advice.toml").config.partition.configured_as == "dirichlet"
    assert [one.configured_as for one in load_config(tmp_path / "advice.toml").config.certificates] == [
        "pathwise-linear"
    ]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--dataset", "minst"), "--dataset minst: there is no dataset 'minst': did you mean 'mnist'"),
        (("--dataset", "arrays"), "--dataset arrays: it needs options that only you know"),
        (("--out", "no/such/file.toml"), "cannot be written: No such file or directory"),
        (("--out", "advice.yaml"), "name a file that ends in .toml"),
    ],
)
def test_wrong_flags_end_in_a_sentence(crfl: Crfl, flags: tuple[str, str], sentence: str) -> None:
    outcome = crfl("advise", "--clients", "2 of 20", "--when", "any", "--model", "linear", *flags)
    assert outcome.returncode == 2
    assert sentence in outcome.stderr
    assert outcome.stderr.count("\n") == 1


HEADER = "age,dose,place name,outcome,site"


def table(path: Path, sites: int, *, disjoint: bool = False) -> Path:
    """Write 60 patients for each site, whose outcome follows from two columns; or from the site alone."""
    rng = np.random.default_rng(0)
    lines = [HEADER]
    for row in range(60 * sites):
        site = row % sites
        age, dose = rng.uniform(20, 90), rng.uniform(0, 1)
        ill = site % 2 == 0 if disjoint else age / 70 + dose > 1.2
        lines.append(f"{age:.1f},{dose:.3f},{rng.integers(5)},{'ill' if ill else 'well'},clinic-{site}")
    path.write_text("\n".join(lines))
    return path


def test_an_own_table_becomes_a_config_that_certifies_most_of_it(crfl: Crfl, tmp_path: Path) -> None:
    table(tmp_path / "clinics.csv", 20)
    flags = ("--data", "clinics.csv", "--label", "outcome", "--group", "site", "--when", "every", "--model", "linear")
    outcome = crfl("advise", *flags, "--clients", "2", "--out", "mine.toml")
    assert outcome.returncode == 0, outcome.stderr
    assert "1,200 samples of 3 inputs, 2 classes, 20 owners with" in outcome.stdout
    assert "labels of owners are about alike: 0." in outcome.stdout
    assert "Groups: 20, one for each client" in outcome.stdout
    assert "a robust one is idle" in outcome.stdout
    assert "`--set reserve.root=100 --set certificates=[]`" in outcome.stdout
    config = load_config(tmp_path / "mine.toml").config
    assert config.model.features[0].configured_as == "random-fourier"
    assert config.dataset.ranges == {"age": (20.0, 90.0), "dose": (0.0, 1.0), "place name": (0.0, 4.0)}  # type: ignore[attr-defined]
    result = run(tmp_path / "mine.toml", overrides=QUIET, out=tmp_path / "run")
    safe, prediction, labels = certified(result, 2)
    assert (safe & (prediction == labels)).mean() > 0.75
    overrides = [*QUIET, "rounds=2", "reserve.root=100", "certificates=[]"]
    baseline = run(tmp_path / "mine.toml", overrides=overrides, out=tmp_path / "baseline")
    assert baseline.metrics.trusted_baseline is not None


def test_columns_of_text_become_inputs_and_those_of_many_texts_are_left_out(crfl: Crfl, tmp_path: Path) -> None:
    lines = table(tmp_path / "clinics.csv", 20).read_text().splitlines()
    rows = [f"{line},{'fm'[n % 2]},patient {n}" for n, line in enumerate(lines[1:])]
    (tmp_path / "clinics.csv").write_text("\n".join([f"{lines[0]},sex,name", *rows]))
    flags = ("--data", "clinics.csv", "--label", "outcome", "--group", "site", "--when", "every", "--model", "linear")
    outcome = crfl("advise", *flags, "--clients", "2", "--out", "mine.toml")
    assert outcome.returncode == 0, outcome.stderr
    assert "1,200 samples of 5 inputs (of texts: sex), 2 classes, without name (more than 50 texts)" in outcome.stdout
    dataset: Any = load_config(tmp_path / "mine.toml").config.dataset
    assert dataset.categories == {"sex": ("f", "m")}
    assert dataset.inputs == ("age", "dose", "place name", "sex")
    result = run(tmp_path / "mine.toml", overrides=QUIET, out=tmp_path / "run")
    safe, prediction, labels = certified(result, 2)
    assert (safe & (prediction == labels)).mean() > 0.7


def test_owners_share_groups_if_there_are_many_and_differing_ones_are_pointed_out(crfl: Crfl, tmp_path: Path) -> None:
    table(tmp_path / "clinics.csv", 60, disjoint=True)
    flags = ("--data", "clinics.csv", "--label", "outcome", "--group", "site", "--when", "every", "--model", "linear")
    outcome = crfl("advise", *flags, "--clients", "1")
    assert outcome.returncode == 0, outcome.stderr
    assert "labels of owners are very different: 0.50" in outcome.stdout
    assert "Groups: 20, of about 3 clients" in outcome.stdout
    assert "Owners differ much" in outcome.stdout
    asked = tomllib.loads((tmp_path / "advice.toml").read_text())
    assert asked["groups"] == {"count": 20}
    assert asked["training"]["class_balance"] is True
    assert "Label skew: clients hold other classes" in outcome.stdout


def test_groups_of_clients_with_other_classes_balance_them() -> None:
    answers = Answers(attackers=1, clients=20, when="every", model="linear", alike=False)
    skewed = tomllib.loads(config_text(answers, choose_certificate(answers), "advice"))
    assert skewed["training"]["class_balance"] is True
    assert load_config(skewed).config.training.class_balance
    assert "class_balance" not in config("every", "linear")["training"]
    early = Answers(attackers=1, clients=20, when="one-early", model="linear", alike=False)
    one_model = tomllib.loads(config_text(early, choose_certificate(early), "advice"))
    assert "class_balance" not in one_model["training"]  # its certificate refuses it


def test_images_get_features_for_images(crfl: Crfl, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "photos.npz", x=rng.integers(0, 256, (60, 28, 28), np.uint8), y=np.arange(60) % 3)
    flags = ("--data", "photos.npz", "--when", "any", "--model", "linear", "--clients", "2 of 10")
    outcome = crfl("advise", *flags)
    assert outcome.returncode == 0, outcome.stderr
    assert "60 samples of 784 inputs, images of 28 x 28, 3 classes" in outcome.stdout
    config = load_config(tmp_path / "advice.toml").config
    assert [one.configured_as for one in config.model.features] == ["scattering", "group-norm", "whiten"]
    assert crfl("run", "advice.toml", "--dry-run").returncode == 0


def test_data_are_asked_for_until_they_can_be_read(crfl: Crfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "clinics.csv", 20)
    answers = ["clinic.csv", "clinics.csv", "result", "site", "outcome", "site", "40", "2", "every", "linear"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*answers, ""])))
    outcome = crfl("advise")
    assert outcome.returncode == 0, outcome.stderr
    assert "there is no file clinic.csv" in outcome.stdout
    assert "there is no column 'result', found age, dose" in outcome.stdout
    assert "Which of the 20 owners may attack?" in outcome.stdout
    assert "found 40 of 20" in outcome.stdout


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--data", "clinics.csv", "--label", "result"), "there is no column 'result', found age, dose"),
        (("--data", "clinics.txt"), "--data clinics.txt: `path` must end in .npz, .npy, .csv"),
        (("--data", "nowhere.csv"), "--data nowhere.csv: path: there is no file"),
        (("--data", "clinics.csv", "--dataset", "mnist"), "--data and --dataset: give one of them"),
        (
            ("--data", "clinics.csv", "--label", "outcome", "--group", "site"),
            "have 20 owners, each of whom is a client",
        ),
    ],
)
def test_data_that_cannot_be_used_are_refused_by_a_sentence(
    crfl: Crfl, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    table(tmp_path / "clinics.csv", 20)
    outcome = crfl("advise", "--clients", "2 of 30", "--when", "any", "--model", "linear", *flags)
    assert outcome.returncode == 2
    assert sentence in outcome.stderr
    assert outcome.stderr.count("\n") == 1
