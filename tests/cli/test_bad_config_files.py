"""Config files that cannot work: one clear sentence that begins with file, key and value."""

from __future__ import annotations

import pytest

from tests.cli.bad_input import Bad, Refused


def file(text: str, begins: str, *says: str, name: str = "bad.toml") -> Bad:
    """A wrong config file."""
    return Bad(["run", name], begins, says, {name: text.encode()})


CONFIG_FILES = {
    "missing file": Bad(["run", "nope.toml"], "nope.toml: ", ["no such file"]),
    "directory": Bad(["run", "."], ".: ", ["not a run directory"]),
    "not text": Bad(["run", "bad.toml"], "bad.toml: ", ["cannot be read", "utf-8"], {"bad.toml": b"\xff\xfe"}),
    "TOML syntax": file("rounds = 3\nseed = \n", "bad.toml: not valid TOML: ", "line 2, column 8"),
    "YAML syntax": file("rounds: [3\n", "bad.yaml: not valid YAML: ", "line 1, column 9", name="bad.yaml"),
    "YAML list": file("- rounds\n", "bad.yaml: ", "must be a table of settings, found list", name="bad.yaml"),
    "extends nothing": file("extends = 'base.toml'\n", "bad.toml: extends = 'base.toml': ", "no file base.toml"),
    "extends a number": file("extends = 3\n", "bad.toml: extends = 3: ", "must be a file name"),
    "extends itself": file("extends = 'bad.toml'\n", "bad.toml: extends: ", "circle", "remove one `extends`"),
    "wrong type": file("rounds = 'many'\n", "bad.toml: rounds = 'many': ", "must be an integer"),
    "truth value for a number": file("rounds = true\n", "bad.toml: rounds = True: must be an integer: true and"),
    "number for a table": file("training = 3\n", "bad.toml: training = 3: must be a table"),
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


@pytest.mark.parametrize("bad", CONFIG_FILES.values(), ids=CONFIG_FILES)
def test_a_bad_config_file_is_refused(bad: Bad, refused: Refused) -> None:
    refused(bad)
