"""Every rule once more: float64, plain loops over clients and coordinates, written from the papers' formulas alone."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import siegelslopes, trim_mean

Array = NDArray[np.float64]


def distance(a: Array, b: Array) -> float:
    """The Euclidean one."""
    return float(np.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))))


def fedavg(values: Array, samples: Sequence[int]) -> Array:
    """The mean by sample counts."""
    return np.asarray(sum(count * row for count, row in zip(samples, values, strict=True)) / sum(samples))


def krum_order(values: Array, f: int) -> list[int]:
    """Clients by ascending Krum score."""
    scores = []
    for i, row in enumerate(values):
        others = sorted(distance(row, other) ** 2 for j, other in enumerate(values) if j != i)
        scores.append(sum(others[: max(1, len(values) - f - 2)]))
    return sorted(range(len(values)), key=scores.__getitem__)


def krum(values: Array, f: int) -> Array:
    """The update with the lowest score."""
    return np.asarray(values[krum_order(values, f)[0]])


def multi_krum(values: Array, f: int, keep: int) -> Array:
    """The mean of those with the lowest scores."""
    return np.asarray(values[krum_order(values, f)[:keep]].mean(0))


def bulyan(values: Array, f: int) -> Array:
    """Krum again and again, then in every coordinate the mean of the nearest to the median."""
    left, selected = list(range(len(values))), []
    for _ in range(len(values) - 2 * f):
        winner = left[krum_order(values[left], f)[0]]
        selected.append(winner)
        left.remove(winner)
    result = []
    for column in values[selected].T:
        middle = float(np.median(column))
        nearest = sorted(column, key=lambda value: abs(value - middle))[: len(selected) - 2 * f]
        result.append(sum(nearest) / len(nearest))
    return np.asarray(result)


def median(values: Array) -> Array:
    """Of every coordinate."""
    return np.asarray([float(np.median(column)) for column in values.T])


def trimmed_mean(values: Array, trim: int) -> Array:
    """Of every coordinate."""
    return np.asarray([trim_mean(column, trim / len(column) + 1e-9) for column in values.T])


def geometric_median(values: Array, shares: Array) -> Array:
    """By a general minimiser, from the coordinate-wise median."""

    def objective(point: Array) -> float:
        return float(sum(share * distance(row, point) for share, row in zip(shares, values, strict=True)))

    def slope(point: Array) -> Array:
        pulls = [
            share * (point - row) / max(distance(row, point), 1e-300) for share, row in zip(shares, values, strict=True)
        ]
        return np.asarray(np.sum(pulls, axis=0))

    found = minimize(objective, np.median(values, axis=0), jac=slope, method="BFGS", options={"gtol": 1e-12})
    return np.asarray(found.x)


Point = list[Decimal]
"""A vector with as many digits as it takes to see 1e30 and 1 beside each other."""

DIGITS = 100


def decimal_distance(a: Point, b: Point) -> Decimal:
    """The Euclidean one."""
    return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Decimal(0)).sqrt()


def decimal_median(values: Array, shares: Array, iterations: int = 200) -> Point:
    """The geometric median with a hundred digits, by Weiszfeld's iterations from the coordinate-wise median."""
    with localcontext(prec=DIGITS):
        rows = [[Decimal(float(x)) for x in row] for row in values]
        point = [Decimal(float(x)) for x in np.median(values, axis=0)]
        for _ in range(iterations):
            pulls = [Decimal(float(a)) / decimal_distance(row, point) for a, row in zip(shares, rows, strict=True)]
            total = sum(pulls, Decimal(0))
            columns = zip(*rows, strict=True)
            point = [sum((p * x for p, x in zip(pulls, column, strict=True)), Decimal(0)) / total for column in columns]
    return point


def decimal_excess(values: Array, shares: Array, point: Array, best: Point) -> float:
    """How much farther from the rows a point is than another, by the sum of weighted distances."""
    with localcontext(prec=DIGITS):
        here = [Decimal(float(x)) for x in point]
        excess = Decimal(0)
        for share, row in zip(shares, values, strict=True):
            place = [Decimal(float(x)) for x in row]
            excess += Decimal(float(share)) * (decimal_distance(place, here) - decimal_distance(place, best))
    return float(excess)


def median_of_means(values: Array, groups: int) -> Array:
    """The geometric median of the means of consecutive groups."""
    sizes = [len(values) // groups + (1 if group < len(values) % groups else 0) for group in range(groups)]
    means, first = [], 0
    for size in sizes:
        means.append(values[first : first + size].mean(0))
        first += size
    return geometric_median(np.asarray(means), np.full(groups, 1 / groups))


def foolsgold_trust(histories: Array, confidence: float = 1.0) -> Array:
    """Algorithm 1 of the paper for one round, with every client's history given."""
    count = len(histories)
    similar = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if i != j:
                lengths = np.linalg.norm(histories[i]) * np.linalg.norm(histories[j])
                similar[i, j] = histories[i] @ histories[j] / lengths
    most = similar.max(1)
    for i in range(count):
        for j in range(count):
            if i != j and most[j] > most[i]:
                similar[i, j] *= most[i] / most[j]
    trust = np.clip([1 - max(row) for row in similar], 0, 1)
    trust = np.minimum(trust / trust.max(), 0.99)
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(confidence * (np.log(trust / (1 - trust)) + 0.5), 0, 1))


def centered_clipping(values: Array, start: Array, radius: float, iterations: int) -> Array:
    """Clip around the centre, average, move the centre."""
    centre = np.asarray(start, np.float64)
    for _ in range(iterations):
        steps = [(row - centre) * min(1.0, radius / max(distance(row, centre), 1e-300)) for row in values]
        centre = centre + sum(steps) / len(values)
    return centre


def residual_reweighting(values: Array, clip: float, threshold: float, power: float) -> Array:
    """One regression after the other, with SciPy's repeated medians."""
    count = len(values)
    ranks = np.arange(count, dtype=np.float64)
    design = np.stack([np.ones(count), ranks], axis=1)
    hat = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
    totals, corrected = np.zeros(count), values.copy()
    for coordinate, column in enumerate(values.T):
        order = np.argsort(column, kind="stable")
        line = np.median(column) + siegelslopes(column[order], ranks).slope * (ranks - np.median(ranks))
        residuals = column[order] - line
        spread = 1.4826 * (1 + 5 / (count - 1)) * np.median(np.sort(np.abs(residuals))[1:])
        confidence = np.ones(count)
        for rank in range(count):
            standard = residuals[rank] / spread
            room, reach = np.sqrt(1 - hat[rank]), clip * np.sqrt(2 / count)
            if standard != 0:
                confidence[rank] = room / standard * max(-reach, min(reach, standard / room))
        totals[order] += confidence * confidence.std(ddof=1)
        for rank, client in enumerate(order):
            if confidence[rank] < threshold:
                corrected[client, coordinate] = line[rank]
    weights = totals**power
    return np.asarray((weights / weights.sum()) @ corrected)


def nearest_neighbour_mixing(values: Array, f: int) -> Array:
    """The means of the nearest."""
    result = []
    for row in values:
        order = sorted(range(len(values)), key=lambda j, row=row: distance(row, values[j]))  # type: ignore[misc]
        result.append(values[order[: len(values) - f]].mean(0))
    return np.asarray(result)


def dnc(values: Array, f: int, filtering: float, coordinates: Sequence[Sequence[int]]) -> Array:
    """Algorithm 2 of Shejwalkar and Houmansadr (2021), by singular values, in the coordinates of every pass."""
    good = set(range(len(values)))
    for chosen in coordinates:
        part = values[:, list(chosen)]
        centred = part - part.mean(axis=0)
        direction = np.linalg.svd(centred)[2][0]
        scores = [float(np.dot(row, direction)) ** 2 for row in centred]
        order = sorted(range(len(values)), key=lambda client: scores[client])
        good &= set(order[: int(len(values) - filtering * f)])
    return np.asarray(values[sorted(good)].mean(axis=0))


def sign_majority(values: Array, step: float) -> Array:
    """Bernstein et al. (2019): one vote at a time."""
    result = []
    for column in values.T:
        up, down = sum(value > 0 for value in column), sum(value < 0 for value in column)
        result.append(step if up > down else -step if down > up else 0.0)
    return np.array(result)
