"""Checks of the attack of a run and of the threat that its certificates assume, before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np

from crfl_core.errors import ConfigError, OptionError, PluginFailure
from crfl_core.plugin_api.plugin_errors import PluginMethod, errors_of, source_location
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records import schedules
from crfl_core.records.attacker_view import Knowledge
from crfl_core.training.aggregator_contract import check_state

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.records.inputs import FederatedData
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.round import State
    from crfl_core.training.client_sampling import Participation


def rounds_to_resample(config: RunConfig, participation: Participation) -> tuple[int, ...]:
    """Return the rounds whose model before noise is kept.

    These are the rounds that certificates start from again, or all rounds.
    """
    if config.threat.rounds is not None:
        attacked = schedules.expand_rounds(config.threat.rounds, config.rounds)
    else:  # a round counts as attacked only if an attacker is drawn in it
        rounds = participation.attack_rounds
        attacked = tuple(number for number in rounds if participation.behaviour(number).attacking.any())
    wanted: set[int] = set()
    for position, certificate in enumerate(config.certificates if config.groups is None else ()):
        with errors_of(f"certificates.{position}", certificate):
            numbers = certificate.rounds_to_resample(attacked or (config.rounds,))
            if any(not 1 <= number <= config.rounds for number in numbers):
                raise OptionError("resample_from", f"found round {max(numbers)}, but rounds are 1..{config.rounds}")
        wanted.update(numbers)
    return tuple(range(1, config.rounds + 1)) if config.storage.keep == "models" else tuple(sorted(wanted))


def check_remote_threat(config: RunConfig, data: FederatedData) -> None:
    """Raise `ConfigError` if remote clients come without a stated threat.

    With remote clients a config must not have an attack to simulate.
    """
    if data.complete:
        return
    if config.attack is not None:
        raise ConfigError("clients that are elsewhere are not simulated: leave it out", key="attack")
    for key, example in (("clients", "1"), ("rounds", "'every'")):
        if getattr(config.threat, key) is None:
            found = "is missing: the server cannot observe what remote clients do, so state what is assumed, such as"
            raise ConfigError(f"{found} {example}", key=f"threat.{key}")


def check_threat(config: RunConfig, clients: int) -> None:
    """Raise `ConfigError` if assumed attackers or rounds do not exist."""
    assumed = config.threat.clients
    if assumed is not None:
        known = 0 <= assumed <= clients if isinstance(assumed, int) else all(0 <= c < clients for c in assumed)
        if not known:
            found = assumed if isinstance(assumed, int) else list(assumed)
            raise ConfigError(f"found {found}, but there are {clients} clients, 0..{clients - 1}", key="threat.clients")
    if config.threat.rounds is not None:
        rounds = schedules.expand_rounds(config.threat.rounds, config.rounds)
        most = schedules.max_attacked_rounds(config.threat.rounds)
        if most is not None and most > len(rounds):
            raise ConfigError(f"found at most {most} attacked rounds, but there are {len(rounds)}", key="threat.rounds")
        if not rounds or rounds[-1] > config.rounds:
            raise ConfigError(f"found {list(rounds)}, but rounds are 1..{config.rounds}", key="threat.rounds")


def prepare_attack(config: RunConfig, data: FederatedData, participation: Participation, streams: Streams) -> State:
    """Return what the attack computes once, after its options were checked.

    The options are checked against the attackers' batches.
    """
    attack = config.attack
    if attack is None:
        return {}
    smallest = min(
        int(
            participation.participants(t)
            .batch_size[participation.behaviour(t).attacking]
            .min(initial=np.iinfo(np.int64).max)
        )
        for t in participation.attack_rounds
    )
    with errors_of("attack", attack):
        target = attack.backdoor_class
        classes = data.facts.classes
        if target is not None and not 0 <= target < classes:
            raise OptionError("target", f"there is no class {target}: classes are 0..{classes - 1}")
        attack.check(smallest)
        with guard_inputs(PluginMethod("attack", attack, "prepare"), data):
            prepared = attack.prepare(data, streams)
    if attack.knowledge not in get_args(Knowledge):
        raise PluginFailure(
            f"attack {attack.full_name} ({source_location(type(attack))}) sets knowledge to {attack.knowledge!r}: it "
            f"is one of {', '.join(map(repr, get_args(Knowledge)))}"
        )
    check_state(PluginMethod("attack", attack, "prepare"), prepared)
    return prepared
