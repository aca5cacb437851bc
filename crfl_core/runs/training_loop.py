"""The rounds of a run, written to its directory: ledger, checkpoints, kept models, and the trained model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from crfl_core._version import __version__
from crfl_core.certification.ball_rule_checks import spectrum_warning
from crfl_core.errors import CrflWarning
from crfl_core.records.ledger import ClientColumns, ClientRows
from crfl_core.runs.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    progress_from_arrays,
    progress_to_arrays,
    twin_from_arrays,
)
from crfl_core.runs.run_directory import CLIENTS, MODEL, RunDirectory
from crfl_core.training import rounds
from crfl_core.training.aggregation import check_free_memory
from crfl_core.training.clean_twin import CleanTwin
from crfl_core.training.independence import check_groups_apart, check_independence
from crfl_core.training.ledger_rows import record_round

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult
    from crfl_core.training.session import Session


def train_rounds(
    session: Session, directory: RunDirectory, saved: Checkpoint | None, clean: RunResult | None = None
) -> None:
    """Play all remaining rounds, then write the model and the ledger."""
    federation = session.federation
    twin = CleanTwin(session, clean)
    if saved is None:
        progress = rounds.initial_progress(federation)
        clients = []
    else:
        twin.progress = twin_from_arrays(saved.round, saved.tensors, federation)
        failed = {record.group: record.failed for record in saved.records if record.failed is not None}
        progress = progress_from_arrays(saved.round, saved.tensors, failed, federation)
        clients = saved.clients
    check_free_memory(session)
    check_groups_apart(session)
    check_independence(federation)
    checkpoints = CheckpointWriter(directory, federation.config.storage.checkpoint_seconds)
    try:
        for outcomes in rounds.play_rounds(session, progress):
            progress = tuple(outcome.after for outcome in outcomes)
            lines, rows = zip(*(record_round(federation, outcome) for outcome in outcomes), strict=True)
            lines = twin.add_distances(lines, outcomes)
            for line, own_rows in zip(lines, rows, strict=True):
                watched = ClientRows.of(own_rows)
                session.hooks.observe("crfl_round_finished", run=session.context, record=line, clients=watched)
            clients += rows
            if (number := progress[0].number) in federation.resampled:
                clipped = [outcome.clipped for outcome in outcomes]
                directory.write_resampled(number, progress_to_arrays(progress, clipped))
            checkpoints.append_rounds(lines)
            checkpoints.note_round(progress, twin.progress, rows)
            del outcomes
    except BaseException:
        checkpoints.save()
        raise
    models = torch.cat([group.models for group in progress]).cpu()
    named = federation.model.layout.unflatten(models[0] if federation.config.groups is None else models)
    columns = ClientColumns.concatenate(clients)
    if warning := spectrum_warning(federation.honest.facts, columns, federation.config.training.ball):
        warnings.warn(warning, CrflWarning, stacklevel=2)
    directory.write_arrays(CLIENTS, vars(columns))
    directory.write_tensors(MODEL, {name: tensor.numpy() for name, tensor in named.items()}, {"version": __version__})
    directory.set_state("trained")
