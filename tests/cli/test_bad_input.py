"""Whatever is wrong with what we are given: one clear sentence, exit status 2, no traceback, nothing half-written."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch

import crfl_core
from crfl_core import extend
from tests.oracle import sealed

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]


@dataclass(frozen=True)
class Bad:
    """A command that cannot work: how its message begins (where, key, value), and what else it must say.

    `files` are written first. Commands that name `finished` or `unfinished` get a copy of such a run.
    """

    command: Sequence[str]
    begins: str
    says: Sequence[str] = ()
    files: Mapping[str, bytes | None] = field(default_factory=dict)


def file(text: str, begins: str, *says: str, name: str = "bad.toml") -> Bad:
    """A wrong config file."""
    return Bad(["run", name], begins, says, {name: text.encode()})


def override(text: str, key: str, *says: str) -> Bad:
    """A wrong `--set` on the default config."""
    return Bad(["run", "--set", text], f"--set {text}: {key}: ", says)


def inputs(content: bytes, *says: str) -> Bad:
    """A wrong file of inputs to predict."""
    return Bad(["predict", "finished", "inputs.npz"], "inputs.npz: ", says, {"inputs.npz": content})


def damaged(command: str, name: str, content: bytes | None, *says: str) -> Bad:
    """A file of a run directory that cannot be used."""
    run = name.partition("/")[0]
    arguments = [command, run, *(["good.npz"] if command == "predict" else [])]
    return Bad(arguments, f"{name}: ", says, {name: content, "good.npz": npz(x=np.zeros((1, 64)))})


def npz(**arrays: object) -> bytes:
    """The bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
    return buffer.getvalue()


CONFIG_FILES = {
    "missing file": Bad(["run", "nope.toml"], "nope.toml: ", ["no such file"]),
    "directory": Bad(["run", "."], ".: ", ["cannot be read", "Is a directory"]),
    "not text": Bad(["run", "bad.toml"], "bad.toml: ", ["cannot be read", "utf-8"], {"bad.toml": b"\xff\xfe"}),
    "TOML syntax": file("rounds = 3\nseed = \n", "bad.toml: not valid TOML: ", "line 2, column 8"),
    "YAML syntax": file("rounds: [3\n", "bad.yaml: not valid YAML: ", "line 1, column 9", name="bad.yaml"),
    "YAML list": file("- rounds\n", "bad.yaml: ", "must be a table of settings, found list", name="bad.yaml"),
    "extends nothing": file("extends = 'base.toml'\n", "bad.toml: extends = 'base.toml': ", "no file base.toml"),
    "extends a number": file("extends = 3\n", "bad.toml: extends = 3: ", "must be a file name"),
    "extends itself": file("extends = 'bad.toml'\n", "bad.toml: extends: ", "circle", "remove one `extends`"),
    "wrong type": file("rounds = 'many'\n", "bad.toml: rounds = 'many': ", "must be a valid integer"),
    "truth value for a number": file("rounds = true\n", "bad.toml: rounds = True: must be a valid integer: true and"),
    "number for a table": file("training = 3\n", "bad.toml: training = 3: must be a valid table"),
    "unknown key": file("ronds = 3\n", "bad.toml: ronds = 3: unknown key; did you mean 'rounds'? known: name, seed,"),
    "unknown key in a table": file(
        "[server]\nclipnorm = 3.0\n", "bad.toml: server.clipnorm = 3.0: unknown key; did you mean 'clip_norm'?"
    ),
    "unknown plugin": file(
        "[[aggregation]]\ntype = 'fedagv'\n",
        "bad.toml: aggregation.0.type = 'fedagv': there is no aggregator 'fedagv': did you mean 'fedavg'",
        "installed: ",
    ),
    "plugin of another kind": file(
        "dataset = 'fedavg'\n", "bad.toml: dataset.type = 'fedavg': ", "the name of another kind, aggregator"
    ),
    "plugin without a name": file("model = { bias = true }\n", "bad.toml: model: needs `type`", "crfl plugins"),
    "unknown option": file(
        "[[aggregation]]\ntype = 'fedavg'\nwieghting = 'uniform'\n",
        "bad.toml: aggregation.0.wieghting = 'uniform': unknown key; did you mean 'weighting'? known: weighting",
    ),
    "broken plugin": file(
        "trackers = ['broken']\n",
        "bad.toml: trackers.0.type = 'broken': tracker 'broken' of broken-tools 0.3 cannot be imported: ",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "steps and epochs": file(
        "[training]\nsteps = 3\nepochs = 1\n", "bad.toml: training: set either steps or epochs, not both"
    ),
    "schedule of the wrong length": file(
        "rounds = 3\nserver = { clip_norm = [1.0, 2.0] }\n",
        "bad.toml: server.clip_norm = [1.0, 2.0]: ",
        "one value per round: found 2 for 3 rounds",
    ),
    "schedule that becomes negative": file(
        "rounds = 3\nserver = { clip_norm = { start = 1.0, slope = -0.4 } }\n",
        "bad.toml: server.clip_norm: must be above 0 in every round, found -0.2 in round 3",
    ),
    "schedule with an unknown key": file(
        "server = { clip_norm = { start = 1.0, slop = 0.1 } }\n",
        "bad.toml: server.clip_norm.slop = 0.1: unknown key; did you mean 'slope'?",
    ),
    "negative noise": file(
        "server = { noise_std = -0.1 }\n", "bad.toml: server.noise_std = -0.1: must be finite and at least 0"
    ),
    "infinite noise": file(
        "server = { noise_std = inf }\n", "bad.toml: server.noise_std = inf: must be finite and at least 0"
    ),
    "no rule": file("aggregation = []\n", "bad.toml: aggregation = []: must end with a rule such as fedavg"),
    "stage in the last place": file(
        "aggregation = ['fedavg', 'halve']\n",
        "bad.toml: aggregation.1 = 'halve': 'halve' is a stage: the last entry must be a rule such as fedavg",
    ),
    "rule before the last place": file(
        "aggregation = ['halve', 'fedavg', 'fedavg']\n",
        "bad.toml: aggregation.1 = 'fedavg': 'fedavg' is a rule and must be the last entry",
    ),
    "certificates of one name": file(
        "certificates = [{ type = 'paper' }, { type = 'paper' }]\n",
        "bad.toml: certificates.1: two are called 'paper': give one of them another `name`",
    ),
    "name that is no file name": file("name = 'a/b'\n", "bad.toml: name = 'a/b': must match pattern"),
    "pixels on tabular data": file(
        "dataset = 'tabular'\npartition = { type = 'iid', clients = 2 }\nattack = 'model-replacement'\n",
        "bad.toml: attack.trigger.type: 'pixels' needs images: use 'features'",
    ),
    "cnn on tabular data": file(
        "dataset = 'tabular'\nmodel = 'cnn'\n", "bad.toml: model.type: 'cnn' needs images: use 'softmax' or 'mlp'"
    ),
    "unit range of unbounded data": file(
        "dataset = { type = 'tabular', scaling = 'unit-range' }\n",
        "bad.toml: dataset.scaling: unit-range needs a dataset with a bounded domain: use minmax or none",
    ),
    "data that are not finite": file(
        "dataset = 'not-finite'\n", "dataset NotFinite: training input 7, feature 2 is nan: remove or fill it"
    ),
    "labels out of range": file(
        "dataset = 'wrong-labels'\n", "dataset WrongLabels: label 3 of test sample 5 is not within 0..2"
    ),
    "arrays that do not fit together": file(
        "dataset = 'too-few-labels'\n",
        "dataset TooFewLabels: the training inputs must be (samples, features) with one label each, ",
        "found (60, 4) and (59,)",
    ),
    "dataset that raises": file(
        "dataset = 'raises'\n", "dataset: 'raises' of bad-tools 1.0 failed: RuntimeError: the server does not answer"
    ),
    "sample without a client": file(
        "dataset = 'tabular'\npartition = 'loses-one'\n",
        "partition: 'loses-one' of bad-tools 1.0 must give every training sample to exactly one client",
        "sample 59 has 0",
    ),
    "client without samples": file(
        "dataset = 'tabular'\npartition = 'empty'\n", "bad.toml: partition.clients: client 1 of 2 got no samples"
    ),
    "misspelt hook": file(
        "trackers = ['misspelt']\n",
        "bad.toml: trackers.0.type = 'misspelt': tracker 'misspelt' of bad-tools 1.0: there is no hook ",
        "'crfl_finishd' (",
        "bad_tools.py:60): did you mean 'crfl_run_finished'",
    ),
}

OVERRIDES = {
    "no equals sign": Bad(
        ["run", "--set", "rounds"], "--set rounds: write it as key=value, for example --set rounds=1"
    ),
    "too few clients behind a stage": Bad(
        ["run", "--set", 'aggregation=[{type="bucketing", size=25}, "krum"]', "--set", "certificates=['paper']"],
        '--set aggregation=[{type="bucketing", size=25}, "krum"]: aggregation.1.f: ',
        ["krum needs clients >= 2 f + 3, found 2 clients", "; 'bucketing', aggregation.0, makes 2 of 50 updates"],
    ),
    "no key": Bad(["run", "--set", "=3"], "--set =3: write it as key=value"),
    "missing list item": Bad(
        ["run", "--set", "certificates.7.name=x"],
        "--set certificates.7.name=x: certificates has no item '7': it has paper, pathwise-linear, tail",
    ),
    "unknown list item": Bad(
        ["run", "--set", "aggregation.krum.f=1"],
        "--set aggregation.krum.f=1: aggregation has no item 'krum': it has fedavg",
    ),
    "item of an empty list": Bad(
        ["run", "--set", "trackers.0.path=x"], "--set trackers.0.path=x: trackers has no item '0': it has 0 items"
    ),
    "number for a key": Bad(["run", "--set", "0=3"], "--set 0=3: 0: unknown key; known: name, seed"),
    "out of range": override("rounds=0", "rounds = 0", "must be greater than or equal to 1"),
    "infinite rate": override("training.learning_rate=inf", "training.learning_rate = inf", "finite number"),
    "unknown seed": override("seeds.noize=3", "seeds.noize = 3", "did you mean 'noise'?"),
    "alpha of 1": override("votes.alpha=1", "votes.alpha = 1", "less than 1"),
    "no CUDA": override("device=cuda", "device", "there is no CUDA device here: use 'cpu' or 'auto'"),
    "attack client": override("attack.clients=[50]", "attack.clients", "no client 50", "0..49"),
    "too many attackers": override("attack.clients=51", "attack.clients", "found 51", "only 50 clients"),
    "attack rounds": override("attack.rounds=[61]", "attack.rounds", "found round 61, but rounds are 1..60"),
    "no attack rounds": override("attack.rounds=[]", "attack.rounds", "found no round at all"),
    "scale below 1": override(
        "attack.scale=0.5", "attack.scale = 0.5", "must be greater than or equal to 1", "'replace'"
    ),
    "too many poisoned": override(
        "attack.poisoned_per_batch=33", "attack.poisoned_per_batch", "found 33, but an attacker's batch has 29 samples"
    ),
    "trigger size": override("attack.trigger.size=9", "attack.trigger.size", "found 9, but images are 8 x 8"),
    "trigger feature": override(
        'attack.trigger={type="features",features=[64]}', "attack.trigger.features", "no feature 64", "0..63"
    ),
    "trigger type": override(
        "attack.trigger.type=pixel", "attack.trigger.type = 'pixel'", "must be one of 'pixels', 'features'"
    ),
    "target class": override("attack.target=10", "attack.target", "there is no class 10: classes are 0..9"),
    "too many clients": override(
        "partition.clients=2000", "partition.clients", "found 2000", "only 1438 training samples"
    ),
    "impossible dirichlet": override(
        'partition={type="dirichlet",clients=200,alpha=0.01,attempts=2}',
        "partition.alpha",
        "fewer than 1 samples in each of 2 draws",
        "raise alpha, use fewer clients or equal_sizes",
    ),
    "no natural clients": override(
        "partition.type=natural", "partition.type", "needs a dataset that says where each sample comes from: loan and"
    ),
    "number of natural clients": override(
        'partition={type="natural",clients=9}', "partition.clients = 9", "known: min_samples, small_groups"
    ),
    "unknown figure format": override('storage.figures=["gif"]', "storage.figures.0 = 'gif'", "'svg', 'png' or 'pdf'"),
    "too many samples": override("dataset.test_samples=9999", "dataset.test_samples", "found 9999", "only 359 samples"),
    "rates per client": override(
        "training.learning_rate={per_client=[0.1,0.2]}", "training.learning_rate", "per client: found 2 for 50 clients"
    ),
    "steps per round": override(
        "training.steps=[1]",
        "training.steps = [1]",
        "one value per round: found 1 for",
        "one value per client is written { per_client = [...] }",
    ),
    "rate that becomes negative": override(
        "training.learning_rate={start=0.5,slope=-0.1}",
        "training.learning_rate",
        "must be above 0 in every round, found 0 in round 5",
    ),
    "half a step": override(
        "training.steps={start=1,slope=0.5}", "training.steps", "whole number of at least 1 in every round, found 1.5"
    ),
    "level not offered": override(
        'certificates.0.levels=["client"]', "certificates.0.levels", "'paper' has no 'client' level: it offers feature"
    ),
    "unknown level": override(
        'certificates.0.levels=["pixel"]', "certificates.0.levels.0 = 'pixel'", "'feature', 'sample' or 'client'"
    ),
    "threat clients": override("threat.clients=[55]", "threat.clients", "found [55], but there are 50 clients, 0..49"),
    "too many threats": override("threat.clients=51", "threat.clients", "found 51, but there are 50 clients"),
    "threat rounds": override("threat.rounds=[99]", "threat.rounds", "found [99], but rounds are 1..60"),
    "attack without attackers drawn": Bad(
        ["run", "--set", "training.participation=0.05", "--set", "attack.rounds=[1]", "--set", "attack.clients=[3]"],
        "--set attack.rounds=[1]: attack.rounds: no attacker is drawn in any attacked round",
        ["training.participation"],
    ),
}

RUN_DIRECTORIES = {
    "out is no run": Bad(
        ["run", "--out", "other"],
        "other: exists and is no run directory: choose another --out",
        (),
        {"other/notes": b""},
    ),
    "out is a file": Bad(["run", "--out", "notes"], "notes: exists and is no run directory", (), {"notes": b""}),
    "out below a file": Bad(
        ["run", "--out", "notes/run"],
        "notes/run: cannot create the run directory: ",
        ["choose another --out"],
        {"notes": b""},
    ),
    "finished run": Bad(
        ["run", "--out", "finished"],
        "finished: holds a finished run: see it with `crfl show finished`",
        ["another --out", "--force"],
    ),
    "other config": Bad(
        ["run", "--out", "unfinished"],
        "unfinished: holds an unfinished run with another config: resume it with `crfl resume unfinished`",
        ["--force"],
    ),
    "show nothing": Bad(["show", "nope"], "nope: no run directory: give the path that `crfl run` printed"),
    "show a file": Bad(["show", "notes"], "notes: no run directory", (), {"notes": b""}),
    "show an unfinished run": Bad(
        ["show", "unfinished"],
        "unfinished: the run is not finished: continue with `crfl resume unfinished`",
    ),
    "resume nothing": Bad(["resume", "nope"], "nope: no run directory"),
    "resume a directory": Bad(["resume", "other"], "other: no run directory", (), {"other/notes": b""}),
    "predict with nothing": Bad(["predict", "nope", "x.npz"], "nope: no run directory"),
    "no metrics": damaged("show", "finished/metrics.json", None, "missing", "--force"),
    "cut metrics": damaged("show", "finished/metrics.json", b"{", "damaged", "Invalid JSON", "--force"),
    "empty audit": damaged("show", "finished/audit.json", b"{}", "damaged", "'certificates'", "--force"),
    "cut status": damaged("show", "finished/status.json", b"{", "damaged"),
    "wrong status": damaged("show", "finished/status.json", b"[]", "damaged: not a table"),
    "unknown state": damaged("show", "finished/status.json", b'{"format": 1, "state": "x"}', "no state 'x'"),
    "newer format": Bad(
        ["show", "finished"],
        "finished: written in format 3, this version of crfl reads formats 1 and 2",
        ["environment.json"],
        {"finished/status.json": b'{"format": 3}'},
    ),
    "damaged model": damaged("predict", "finished/model.safetensors", b"x", "damaged", "--force"),
    "damaged ledger": damaged("predict", "finished/ledger.json", b"{}", "damaged"),
    "damaged clients": damaged("predict", "finished/clients.npz", b"x", "damaged: no npz file of plain arrays"),
    "damaged rounds": damaged("predict", "finished/rounds.jsonl", b"{}\n", "damaged"),
    "damaged config": damaged("predict", "finished/config.toml", b"rounds =", "not valid TOML"),
    "missing rounds": Bad(
        ["predict", "finished", "good.npz"],
        "finished: the ledger must hold rounds 1 to 3, found 0",
        (),
        {"finished/rounds.jsonl": b"", "good.npz": npz(x=np.zeros((1, 64)))},
    ),
    "damaged checkpoint": damaged("resume", "unfinished/checkpoint/state.safetensors", b"x", "damaged", "--force"),
    "checkpoint beyond the ledger": Bad(
        ["resume", "unfinished"],
        "unfinished: the ledger ends before the checkpoint of round 2: start again with --force",
        (),
        {"unfinished/rounds.jsonl": b""},
    ),
}

PREDICT_INPUTS = {
    "missing file": Bad(["predict", "finished", "x.npz"], "x.npz: ", ["No such file"]),
    "wrong shape": inputs(npz(x=np.zeros((2, 63))), "x must be numbers of shape (samples, 64), found (2, 63)"),
    "no rows": inputs(npz(x=np.zeros((0, 64))), "found (0, 64)"),
    "a single number": inputs(npz(x=3.0), "found ()"),
    "text": inputs(npz(x=np.full((1, 64), "a")), "must be numbers"),
    "not finite": inputs(npz(x=np.full((2, 64), np.nan)), "row 0 is not finite: remove or fill it"),
    "no x": inputs(npz(y=np.zeros((2, 64))), "has no array `x`, found y", "np.savez(file, x=inputs)"),
    "objects": inputs(npz(x=np.array([[None] * 64])), "no npz or npy file of plain numbers"),
    "no npz": inputs(b"hello", "no npz or npy file of plain numbers", "np.savez(file, x=inputs)"),
    "empty": inputs(b"", "no npz or npy file of plain numbers"),
    "cut off": inputs(npz(x=np.zeros((2, 64)))[:200], "no npz or npy file of plain numbers"),
    "out in no directory": Bad(
        ["predict", "finished", "good.npz", "--out", "no/where.csv"],
        "no/where.csv: cannot be written: ",
        ["choose another --out"],
        {"good.npz": npz(x=np.zeros((1, 64)))},
    ),
}

TABLES = {"config": CONFIG_FILES, "--set": OVERRIDES, "directory": RUN_DIRECTORIES, "predict": PREDICT_INPUTS}
CASES = {f"{title}: {name}": bad for title, table in TABLES.items() for name, bad in table.items()}

BAD_TOOLS = """
from dataclasses import replace

import numpy as np

from crfl_core.extend import Data, Dataset, Domain, Partitioner, Stage, Tracker, hookimpl


class Tabular(Dataset):
    scaling: str = "none"

    def read(self):
        x, y = np.linspace(0.0, 1.0, 240).reshape(60, 4), np.arange(60) % 3
        return Data(x=x, y=y, test_x=x, test_y=y, domain=Domain(), class_names=("a", "b", "c"))


class NotFinite(Tabular):
    def read(self):
        data = super().read()
        x = data.x.copy()
        x[7, 2] = np.nan
        return replace(data, x=x)


class WrongLabels(Tabular):
    def read(self):
        data = super().read()
        return replace(data, test_y=np.where(np.arange(60) == 5, 3, data.test_y))


class TooFewLabels(Tabular):
    def read(self):
        data = super().read()
        return replace(data, y=data.y[1:])


class Raises(Tabular):
    def read(self):
        raise RuntimeError("the server does not answer")


class LosesOne(Partitioner):
    def split(self, data, streams):
        return tuple(np.array_split(np.arange(len(data.x) - 1), 20))


class Empty(Partitioner):
    clients: int = 2

    def split(self, data, streams):
        return np.arange(len(data.x)), np.arange(0)


class Halve(Stage):
    def transform(self, updates, state):
        raise NotImplementedError


class Misspelt(Tracker):
    @hookimpl
    def crfl_finishd(self): ...
"""
BAD_POINTS = {
    "crfl.datasets": {
        "tabular": "Tabular",
        "not-finite": "NotFinite",
        "wrong-labels": "WrongLabels",
        "too-few-labels": "TooFewLabels",
        "raises": "Raises",
    },
    "crfl.partitioners": {"loses-one": "LosesOne", "empty": "Empty"},
    "crfl.aggregators": {"halve": "Halve"},
    "crfl.trackers": {"misspelt": "Misspelt"},
}


@pytest.fixture(scope="session")
def unfinished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was interrupted after its second round."""

    class Interrupts(extend.Tracker):
        @extend.hookimpl
        def crfl_round_started(self, current: extend.Round) -> None:
            if current.number == 3:
                raise KeyboardInterrupt

    path = tmp_path_factory.mktemp("unfinished") / "run"
    overrides = ["rounds=3", "attack=none", "storage.checkpoint_seconds=0", "engine.threads=1"]
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(overrides=overrides, out=path, trackers=[Interrupts()])
    return path


def contents(path: Path) -> set[Path]:
    """Every file and directory below a path."""
    return {entry for entry in path.rglob("*") if "__pycache__" not in entry.parts}


@pytest.mark.parametrize("bad", CASES.values(), ids=CASES)
def test_bad_input_ends_in_one_clear_sentence(
    bad: Bad, crfl: Crfl, install: Install, tmp_path: Path, finished_run: Path, unfinished_run: Path
) -> None:
    if "device=cuda" in bad.command and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    install("bad-tools", "1.0", BAD_POINTS, BAD_TOOLS)
    install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, "import no_such_module")
    for name, run in {"finished": finished_run, "unfinished": unfinished_run}.items():
        if name in bad.command:
            shutil.copytree(run, tmp_path / name)
    for name, content in bad.files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    if any(name.startswith("finished/") and name != "finished/status.json" for name in bad.files):
        sealed(tmp_path / "finished")  # or else nobody would look further than its digest
    before = contents(tmp_path)

    result = crfl(*bad.command)

    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {bad.begins}")
    for words in bad.says:
        assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert contents(tmp_path) == before
