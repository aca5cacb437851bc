"""The rounds of a run, written to its directory: ledger, checkpoints, kept models, and the trained model."""

from __future__ import annotations

import time

from crfl_core import store
from crfl_core._version import __version__
from crfl_core.api.checkpoints import packed, unpacked
from crfl_core.federation import rounds
from crfl_core.federation.recording import record
from crfl_core.federation.rounds import Progress
from crfl_core.federation.session import Session
from crfl_core.ledger import ClientColumns
from crfl_core.store import RunDirectory


class Checkpoints:
    """Saves where training stands every few seconds, and whatever is not saved yet when something goes wrong."""

    def __init__(self, directory: RunDirectory, pause: float) -> None:
        self._directory, self._pause, self._last = directory, pause, time.monotonic()
        self._unsaved: tuple[Progress, list[ClientColumns]] | None = None

    def reached(self, progress: Progress, clients: ClientColumns) -> None:
        """A round is over. Progress and rows change together: an interrupt comes before both or behind both."""
        self._unsaved = progress, [*(self._unsaved[1] if self._unsaved else ()), clients]
        if time.monotonic() - self._last >= self._pause:
            self.save()

    def save(self) -> None:
        """Write what is not saved yet."""
        if self._unsaved is not None:
            progress, rows = self._unsaved
            self._directory.write_checkpoint(progress.number, packed(progress), rows)
        self._unsaved, self._last = None, time.monotonic()


def train(session: Session, directory: RunDirectory, saved: store.Checkpoint | None) -> None:
    """All rounds that are still to do, and then the model and the ledger.

    The models before noise of rounds that certificates start from again are kept, too. Whatever ends a round, all
    rounds before it are saved.
    """
    federation = session.federation
    progress, clients = rounds.initial(federation), []
    if saved is not None:
        progress, clients = unpacked(saved.round, saved.tensors, federation), saved.clients
    checkpoints = Checkpoints(directory, federation.config.storage.checkpoint_seconds)
    with session.opened():
        try:
            for outcome in rounds.train(session, progress):
                progress = outcome.after
                line, rows = record(federation, outcome)
                session.hooks.observe("crfl_round_finished", run=session.context, record=line)
                clients.append(rows)
                if progress.number in federation.resampled:
                    directory.write_resampled(progress.number, packed(progress, outcome.before_noise))
                directory.append_round(line)
                checkpoints.reached(progress, rows)
                del outcome
        except BaseException:
            checkpoints.save()
            raise
    named = federation.model.layout.unflatten(progress.models[0].cpu())
    directory.write_arrays("clients.npz", vars(ClientColumns.concatenate(clients)))
    directory.write_tensors(
        "model.safetensors", {name: tensor.numpy() for name, tensor in named.items()}, {"version": __version__}
    )
    directory.set_state("trained")
