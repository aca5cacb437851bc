"""Settings on the command line that cannot work: one clear sentence that begins with what was typed."""

from __future__ import annotations

import pytest
import torch

from tests.cli.bad_input import Bad, Refused


def override(text: str, key: str, *says: str) -> Bad:
    """A wrong `--set` on the default config."""
    return Bad(["run", "--set", text], f"--set {text}: {key}: ", says)


OVERRIDES = {
    "no equals sign": Bad(
        ["run", "--set", "rounds"], "--set rounds: write it as key=value, for example --set rounds=1"
    ),
    "too few clients behind a stage": Bad(
        ["run", "--set", 'aggregation=[{type="bucketing", size=25}, "krum"]', "--set", "certificates=['paper']"],
        '--set aggregation=[{type="bucketing", size=25}, "krum"]: aggregation.1.f: ',
        ["krum needs clients >= 2 f + 3, found 2 clients", "; 'bucketing' makes 2 of 50 updates"],
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
        'certificates.0.levels=["pixel"]',
        "certificates.0.levels.0 = 'pixel'",
        "'feature', 'sample', 'client' or 'backdoor'",
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


@pytest.mark.parametrize("bad", OVERRIDES.values(), ids=OVERRIDES)
def test_a_bad_override_is_refused(bad: Bad, refused: Refused) -> None:
    if "device=cuda" in bad.command and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    refused(bad)
