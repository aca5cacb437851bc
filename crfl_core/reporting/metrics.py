"""Figures of merit of a run: accuracy, backdoor success, certified accuracy and rate at every radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.plugin_api.certificate import (
    CertificateResult,
    CollectiveGuarantee,
    Direction,
    Guarantee,
    Level,
    Statement,
)
from crfl_core.records.inputs import is_local
from crfl_core.records.ledger import Ledger, LedgerRecord

if TYPE_CHECKING:
    from crfl_core.plugin_api.attack import Attack

Array = NDArray[np.float64]
GRID_STEPS = 10


class Curve(LedgerRecord):
    """Certified accuracy and rate of one certificate at one level on one test set.

    At radius r, `certified_rate` is the share of samples whose prediction is certified at r or beyond, and
    `certified_accuracy` the share of those that are also right; abstentions count as neither. `median_radius` is the
    largest radius at which at least half of all samples are certified, None if fewer are certified at all.
    `directions` are the readings that hold, see `Direction`. `rounds` says when attacks are assumed. Against attacks
    in that many unknown rounds, the shares are `any_round_accuracy` and `any_round_rate`, else empty.
    `by_clients` is the certified accuracy of the backdoor level at every radius for 0, 1, 2, ... malicious clients.
    """

    certificate: str
    level: Level
    test_set: str
    statement: Statement
    directions: tuple[Direction, ...]
    clean_world: str
    label: str
    conditional: tuple[str, ...]
    samples: int
    accuracy: float
    abstained: float
    median_radius: float | None
    radii: tuple[float, ...]
    certified_accuracy: tuple[float, ...]
    certified_rate: tuple[float, ...]
    rounds: str = ""
    any_round_accuracy: tuple[float, ...] = ()
    any_round_rate: tuple[float, ...] = ()
    by_clients: tuple[tuple[float, ...], ...] = ()


class CollectiveCurve(LedgerRecord):
    """Collective certified accuracy of a certificate on one test set, by the number of malicious clients.

    `collective_accuracy` is the share of all samples that stays right at least if that many of the `of_clients` clients
    are malicious, the same ones for all samples, whichever these are; None where that was not computed. `exact` says
    that some such clients leave no more. It is a statement about this test set, and not about a single prediction.
    """

    certificate: str
    test_set: str
    directions: tuple[Direction, ...]
    conditional: tuple[str, ...]
    rounds: str
    samples: int
    of_clients: int
    clients: tuple[int, ...]
    collective_accuracy: tuple[float | None, ...]
    exact: tuple[bool, ...]

    def sentence(self, clients: int) -> str:
        """Return the statement for one number of clients."""
        share = self.collective_accuracy[self.clients.index(clients)]
        if share is None:
            return f"not computed for {clients} of the {self.of_clients} clients: too many sets of clients"
        return (
            f"at least {floor_percent(share)} of this test set stay right, whichever {clients} of the "
            f"{self.of_clients} clients {'is' if clients == 1 else 'are'} malicious"
        )


def floor_percent(share: float) -> str:
    """Format a share as a percentage, rounded down to one digit.

    >>> floor_percent(0.8039), floor_percent(1.0), floor_percent(0.29)
    ('80.3 %', '100.0 %', '29.0 %')
    """
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f} %"


class Backdoor(LedgerRecord):
    """Rates at which non-target inputs are taken for the target class: `samples` backdoored ones, all clean ones.

    Both rates are of the same model. What a model trained without the attack makes of the same inputs is another
    question, see `attack_effect`.
    """

    target: int
    success_rate: float
    clean_rate: float
    samples: int


class ClassHistogram(LedgerRecord):
    """Counts of training samples of each class that every client holds: `counts[class][client]`.

    `classes` and `clients` are their names; `clients` is empty if the clients are only numbered.
    """

    classes: tuple[str, ...]
    clients: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of samples of every client."""
        return tuple(map(sum, zip(*self.counts, strict=True)))

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        partition: Sequence[NDArray[np.int64]],
        class_names: tuple[str, ...],
        client_names: tuple[str, ...] = (),
    ) -> ClassHistogram:
        """Return the histogram of a split.

        `partition` has the rows of each client.
        """
        if not all(map(is_local, partition)):
            return cls(classes=("not known here",), clients=client_names, counts=(tuple(map(len, partition)),))
        shape = len(class_names), len(partition)
        client = np.repeat(np.arange(shape[1]), [len(rows) for rows in partition])
        cell = labels[np.concatenate(partition)] * shape[1] + client
        counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
        return cls(classes=class_names, clients=client_names, counts=tuple(map(tuple, counts.tolist())))


class Attackers(LedgerRecord):
    """The clients that attacked, and their share of the model.

    A round's share is the attackers' part of the weights that reached the model, of coordinate-wise rules each client's
    largest; `rounds` are those in which an attacker took part. The shares are None if weights do not tell: in some of
    these rounds a part of the aggregate depends on what was submitted and is in no client's weight. `attack` is its
    name, `scale` the factor on its updates as the config says.
    """

    attack: str = ""
    scale: float | str | None = None
    clients: tuple[int, ...]
    rounds: tuple[int, ...]
    mean_weight_share: float | None
    largest_weight_share: float | None


class TrustedBaseline(LedgerRecord):
    """Test accuracy of the run's model, trained on the server's own labelled samples alone.

    No client can touch that model, so its accuracy is certified against all of them.
    """

    accuracy: float
    samples: int


class Metrics(LedgerRecord):
    """Everything that `metrics.json` holds. `assumed_attackers` is the number of clients that the threat assumes.

    `voting` is the rule by which groups vote; None if there is one model.
    """

    accuracy: float
    loss: float
    backdoored_accuracy: float | None
    backdoor: Backdoor | None
    attackers: Attackers | None = None
    assumed_attackers: int = 1
    trusted_baseline: TrustedBaseline | None = None
    voting: str | None = None
    curves: tuple[Curve, ...]
    collective: tuple[CollectiveCurve, ...] = ()
    refused: dict[str, str]
    partition: ClassHistogram

    @property
    def summary(self) -> str:
        """Return the main numbers on one line.

        They are accuracy, attack success rate, and the names of the certificates.
        """
        parts = [f"accuracy {self.accuracy:.3f}"]
        if self.backdoor is not None:
            parts.append(f"attack success rate {self.backdoor.success_rate:.3f}")
        names = dict.fromkeys(f"{curve.certificate}{f' ({curve.label})' * bool(curve.label)}" for curve in self.curves)
        if names:
            parts.append(f"certificates: {', '.join(names)}")
        if self.refused:
            parts.append(f"refused: {', '.join(self.refused)}")
        return "; ".join(parts)

    def proven_accuracy(self, clients: float) -> tuple[float, Curve] | None:
        """Return the largest certified clean accuracy and its curve.

        It holds against that many clients. Only a proof without conditions counts. None if the run has no such proof.
        """
        found = [
            (curve.certified_accuracy[curve.radii.index(clients)], curve)
            for curve in self.curves
            if (curve.level, curve.test_set) == ("client", "clean")
            and not (curve.label or curve.conditional)
            and clients in curve.radii
        ]
        return max(found, key=lambda one: one[0], default=None)

    def clients_above_baseline(self) -> float | None:
        """Return the most clients whose proof beats the server alone.

        Against that many, more is proved than the server reaches on its own samples. None if no number of clients is
        like this.
        """
        baseline = self.trusted_baseline
        if baseline is None:
            return None
        radii = {radius for curve in self.curves if curve.level == "client" for radius in curve.radii}
        proved = ((radius, self.proven_accuracy(radius)) for radius in radii)
        above = [radius for radius, best in proved if best is not None and best[0] > baseline.accuracy]
        return max(above, default=None)


def measure_attackers(ledger: Ledger, attack: Attack | None = None) -> Attackers | None:
    """Measure the attackers' share of a run.

    None if no client attacked.
    """
    numbers = np.unique(ledger.clients.round[ledger.clients.attacking])
    if not len(numbers):
        return None
    shares = []
    for number in numbers:
        rows = ledger.clients.of_round(int(number))
        weights = np.abs(rows.weight)
        shares.append(float(weights[rows.attacking].sum() / max(weights.sum(), np.finfo(float).tiny)))
    is_weighted = not any(record.has_unweighted_part for record in ledger.rounds if record.round in numbers)
    return Attackers(
        attack="" if attack is None else attack.configured_as,
        scale=None if attack is None else attack.scale,
        clients=tuple(map(int, np.unique(ledger.clients.client[ledger.clients.attacking]))),
        rounds=tuple(map(int, numbers)),
        mean_weight_share=float(np.mean(shares)) if is_weighted else None,
        largest_weight_share=max(shares) if is_weighted else None,
    )


def compute_curves(
    guarantees: Sequence[CertificateResult], radii: Sequence[float] | None, attackers: int = 0
) -> tuple[Curve, ...]:
    """Compute the curves of guarantees.

    They are at the given radii, or else on grids that a level's test sets share. Curves about clients also have a point
    at the assumed number of `attackers`, which is what the user asks about.
    """
    grids: dict[tuple[str, str], tuple[float, ...]] = {}
    for certified in guarantees:
        alike = [one for one in guarantees if table_key(one) == table_key(certified)]
        largest = np.concatenate([answer.radius for one in alike for answer in (one.guarantee, *one.by_clients)])
        grid = default_grid(largest, certified.level) if radii is None else tuple(radii)
        if radii is not None and certified.level == "client" and attackers and attackers not in grid:
            grid = tuple(sorted((*grid, float(attackers))))
        grids[table_key(certified)] = grid
    return tuple(compute_curve(certified, grids[table_key(certified)]) for certified in guarantees)


def collective_curve(certified: CertificateResult, found: CollectiveGuarantee, of_clients: int) -> CollectiveCurve:
    """Return the curve of a collective guarantee.

    `certified` is that of single predictions.
    """
    samples = len(certified.labels)
    return CollectiveCurve(
        certificate=certified.certificate,
        test_set=certified.test_set,
        directions=certified.directions,
        conditional=certified.conditional,
        rounds=certified.rounds,
        samples=samples,
        of_clients=of_clients,
        clients=found.clients,
        collective_accuracy=tuple(None if right is None else right / samples for right in found.right),
        exact=found.exact,
    )


def table_key(result: CertificateResult | Curve) -> tuple[str, str]:
    """Return what one table shows: a certificate at one level."""
    return result.certificate, result.level


def compute_curve(certified: CertificateResult, grid: tuple[float, ...]) -> Curve:
    """Compute the curve of one guarantee at the radii of a grid."""
    guarantee = certified.guarantee
    reaches = guarantee.radius[:, None] >= np.asarray(grid)[None, :]  # NaN reaches nothing
    right = guarantee.prediction == certified.labels
    any_round: dict[str, tuple[float, ...]] = {}
    if certified.any_round is not None:  # the stated rounds are among the unknown ones
        stands = reaches & (certified.any_round.radius[:, None] >= np.asarray(grid)[None, :])
        any_round = {
            "any_round_accuracy": sample_shares(stands & right[:, None]),
            "any_round_rate": sample_shares(stands),
        }
    return Curve(
        certificate=certified.certificate,
        level=certified.level,
        test_set=certified.test_set,
        statement=certified.statement,
        directions=certified.directions,
        clean_world=certified.clean_world,
        label=certified.label,
        conditional=certified.conditional,
        samples=len(right),
        accuracy=float(right.mean()),
        abstained=float(guarantee.abstained.mean()),
        median_radius=median_radius(guarantee.radius),
        radii=grid,
        certified_accuracy=sample_shares(reaches & right[:, None]),
        certified_rate=sample_shares(reaches),
        rounds=certified.rounds,
        by_clients=tuple(certified_shares(answer, certified.labels, grid) for answer in certified.by_clients),
        **any_round,
    )


def certified_shares(guarantee: Guarantee, labels: NDArray[np.int64], grid: Sequence[float]) -> tuple[float, ...]:
    """Return the shares of right and certified samples.

    They are shares of all samples, one for every radius of a grid.
    """
    reaches = guarantee.radius[:, None] >= np.asarray(grid)[None, :]
    return sample_shares(reaches & (guarantee.prediction == labels)[:, None])


def sample_shares(holds: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return the share of samples for which a condition holds.

    `holds` is (m, k), for m samples. The result has a share for each of the k radii.
    """
    return tuple(map(float, holds.mean(axis=0)))


def median_radius(radius: Array) -> float | None:
    """Return the largest radius that half of all samples reach.

    At least half of them do. Uncertified samples reach no radius.

    >>> median_radius(np.array([np.nan, 2.0, np.inf, 3.0])), median_radius(np.array([np.nan, np.nan, np.inf]))
    (3.0, None)
    """
    ordered = np.sort(np.where(np.isnan(radius), -np.inf, radius))[::-1]
    middle = float(ordered[(len(ordered) - 1) // 2])
    return None if math.isinf(middle) and middle < 0 else middle


def default_grid(radius: Array, level: Level = "feature") -> tuple[float, ...]:
    """Return round numbers from 0 to the largest finite radius.

    They are whole for clients. Infinity is included if a sample reaches it.

    >>> default_grid(np.array([0.17, 0.93, np.nan]))
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """
    finite = radius[np.isfinite(radius)]
    largest = float(finite.max()) if len(finite) else 0.0
    end = (math.inf,) if np.isposinf(radius).any() else ()
    if largest / GRID_STEPS == 0:  # also a radius too small to be divided
        return (0.0, *end)
    raw = max(1.0, largest / GRID_STEPS) if level == "client" else largest / GRID_STEPS
    steps = (1, 2, 5, 10) if level == "client" else (1, 2, 2.5, 5, 10)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in steps if factor * magnitude >= raw * (1 - 1e-12))
    digits = max(0, 2 - math.floor(math.log10(step)))
    return (*(round(i * step, digits) for i in range(int(largest / step * (1 + 1e-12)) + 1)), *end)
