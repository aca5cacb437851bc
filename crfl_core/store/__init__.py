"""Run directories: plain files, written atomically, resumable, never pickled.

config.toml          the complete config; loads to the same object
environment.json     versions of everything that took part
crfl.json            says that this is a run directory, and which installation made it
status.json          training, trained or finished, and the digests of what was written so far
manifest.json        the SHA-256 of every file of a finished run; its own is in status.json
ledger.json          static facts          rounds.jsonl  one line per round
clients.npz          one row per round and client
checkpoint/          while training: model and plugin states, and the rows of clients.npz so far
features.safetensors what feature maps were fitted to, if any
model.safetensors    the clipped final aggregate, before any test noise
votes/<digest>.npz   one file per vote request
certificates/*.csv   one file per certificate: a row per level, test set and sample
audit.json           every assumption of every certificate
metrics.json         all numbers of the tables, and the classes of every client
figures/             partition.svg and partition.png: the same as a picture
"""

from crfl_core.store.claims import claim
from crfl_core.store.directory import CONFIG, Checkpoint, RunDirectory
from crfl_core.store.environment import used_plugins

__all__ = ["CONFIG", "Checkpoint", "RunDirectory", "claim", "used_plugins"]
