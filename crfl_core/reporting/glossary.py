"""Terms of reports, each explained once."""

from __future__ import annotations

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "abstain": "The certificate gives no prediction for a sample because its votes are too close.",
    "any round": "Attackers choose the rounds themselves; the guarantee knows only how many rounds they attack.",
    "attack success rate": "Share of samples with the trigger that the model takes for the attacker's target class.",
    "backward": "The guarantee holds for this run, which may have been attacked: had its attackers behaved, the "
    "prediction would have been the same.",
    "certified accuracy": "Share of test samples whose prediction is right and cannot be changed by the stated attack.",
    "certified rate": "Share of test samples whose prediction cannot be changed by the stated attack, right or wrong.",
    "change of an input": "How far an attacker moves a poisoned input: Euclidean norm, in scaled inputs.",
    "clean twin": "The same run, with the same seeds, without the attack.",
    "collective certified accuracy": "Share of this test set that stays right, whichever clients are malicious, if "
    "they are the same for all samples. It says of no single prediction that it stays right.",
    "conditional": "The number holds only if an assumption holds that the run contradicts or cannot show.",
    "does not hold": "The record of the run contradicts the assumption: what depends on it is refused, or is marked as "
    "conditional.",
    "effective weight": "Weight p of a client's update in the global model of a round, after all aggregation steps.",
    "forward": "The guarantee holds for attacks that did not happen: had these clients attacked, within the threat, "
    "the prediction would have been the same.",
    "holds": "The record of the run shows that the assumption holds.",
    "honest world": "The run is compared with one in which the attackers train on clean data and submit the result.",
    "malicious client": "A client that the attacker controls.",
    "marginal": "Over all noise that training might have drawn, the most likely prediction would have been the same. "
    "One training run cannot prove this.",
    "pathwise": "With the same noise, batches and participants, training without the attack would have given the same "
    "prediction.",
    "poisoned share": "Share of an attacker's samples that it replaces or changes.",
    "scaled world": "The run is compared with one in which the attackers train on clean data and still multiply their "
    "updates.",
    "tail": "The majority vote over many continuations of training, each with new noise, would have been the same "
    "without the attack.",
    "taken on trust": "Nothing in the run can show whether the assumption holds. The certificate is worth as much as "
    "this assumption is true.",
}
"""Explanation of each term in one or two sentences; reports show them as tooltips and as a list."""
