"""Which configs train alike: a digest of everything that rounds depend on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from crfl_core.extend import Plugin, PluginError, Registry, RunConfig
from crfl_experiments.sweeps.configs import item, written

AFTERWARDS = ("name", "threat", "votes", "certificates", "evaluation.radii", "seeds.votes", "storage", "plugins")
"""Keys that no round depends on."""

SERVER = ("server", "aggregation", "seeds.noise", "seeds.aggregation", "engine")
"""Keys that clients do not depend on, once they have a model to start from."""

OWN = "crfl"
LOOK_AHEAD = frozenset({("attack", "certificate-seeking")})
"""Plugins of this distribution that look at the number of rounds. Of others nobody knows."""


def training_key(config: RunConfig, *, rounds: bool = True, server: bool = True) -> str:
    """A digest of everything in a config that training depends on.

    Without `rounds`: of all but how many there are. Without `server`: of what clients alone depend on, given a model.
    """
    tree = written(config)
    certificates = [one for one in config.certificates if any(name.startswith("crfl_") for name in dir(type(one)))]
    hooked = [one.model_dump(mode="json") for one in certificates]  # a certificate may judge rounds as any plugin may
    for key in (*AFTERWARDS, *(() if rounds else ("rounds",)), *(() if server else SERVER)):
        *above, last = key.split(".")
        here: Any = tree
        for part in above:
            here = item(here, part) or {}
        here.pop(last, None)
    return sha256(json.dumps([tree, hooked], sort_keys=True).encode()).hexdigest()


def looks_ahead(config: RunConfig) -> bool:
    """Whether a round may depend on how many there are: rates that are found for all of them, or some plugin."""
    rate = written(config)["training"]["learning_rate"]
    if isinstance(rate, dict) and "type" in rate:
        return True
    registry = Registry()
    return any(may_look_ahead(registry, kind, plugin) for kind, plugin in training_plugins(config))


def training_plugins(config: RunConfig) -> Iterator[tuple[str, Plugin]]:
    """The plugins that take part in rounds."""
    return ((kind, plugin) for kind, plugin in config.used_plugins() if kind != "certificate")


def may_look_ahead(registry: Registry, kind: str, plugin: Plugin) -> bool:
    """Whether a plugin may make something of the number of rounds, as far as is known."""
    try:
        found = registry.find(kind, plugin.configured_as)
    except PluginError:
        return True
    return found.distribution != OWN or (kind, found.name) in LOOK_AHEAD
