"""Partitioners that deal samples at random to a given number of clients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Partitioner, Streams


class RandomPartitioner(Partitioner):
    """Partitioners that split samples over a given number of clients."""

    deals_pool: ClassVar[bool] = True

    clients: int = Field(20, ge=1, description="number of clients in the federation")

    def check_enough(self, samples: int, each: int = 1) -> None:
        """Raise `OptionError` if there are too many clients.

        Each client must get `each` samples.
        """
        if self.clients * each > samples:
            need = f", and each needs {each}" if each > 1 else ""
            raise OptionError("clients", f"found {self.clients}, but there are only {samples} training samples{need}")


def deal(rows: NDArray[np.int64], owner: NDArray[np.int64], clients: int) -> tuple[NDArray[np.int64], ...]:
    """Deal rows to clients, in the order given.

    `owner[i]` is the client that gets `rows[i]`.

    >>> deal(np.array([7, 8, 9]), np.array([1, 0, 1]), 2)
    (array([8]), array([7, 9]))
    """
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return tuple(np.split(rows[np.argsort(owner, kind="stable")], ends[:-1]))


class Iid(RandomPartitioner):
    """Random shares of equal size, up to one sample (the paper's choice for images)."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Cut a random permutation into equal pieces."""
        self.check_enough(len(data.y))
        order = streams.generator("data/partition").permutation(len(data.y))
        return tuple(np.array_split(order, self.clients))


class QuantitySkew(RandomPartitioner):
    """Random samples, sizes in Dirichlet(alpha) proportions (Li et al., 2022).

    Every client gets `min_samples` first, so that no draw leaves a client empty; the proportions are of the rest.
    """

    alpha: float = Field(0.5, gt=0, allow_inf_nan=False, description="concentration; smaller is more uneven")
    min_samples: int = Field(1, ge=1, description="fewest samples that a client may get")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Cut a random permutation into uneven pieces."""
        self.check_enough(len(data.y), self.min_samples)
        generator = streams.generator("data/partition")
        order = generator.permutation(len(data.y))
        shares = np.cumsum(generator.dirichlet(np.full(self.clients, self.alpha)))[:-1]
        rest = len(order) - self.clients * self.min_samples
        cuts = np.round(shares * rest).astype(np.int64) + self.min_samples * np.arange(1, self.clients)
        return tuple(np.split(order, cuts))


class Dirichlet(RandomPartitioner):
    """Every class spread over the clients in Dirichlet(alpha) proportions (Yurochkin et al., 2019; Li et al., 2022).

    Small `alpha` gives each client few classes and makes sizes uneven, large `alpha` approaches equal mixtures. With
    `equal_sizes` the draw is that of Hsu et al. (2019): a client's mixture of classes comes from Dirichlet(alpha p),
    where p are the shares of the classes in all data. Samples are then drawn client by client without replacement, from
    other classes once one is used up, so the last clients get what the others left.
    """

    alpha: float = Field(0.9, gt=0, allow_inf_nan=False, description="concentration; smaller is more uneven")
    equal_sizes: bool = Field(False, description="mixtures of classes differ, sizes do not, up to one sample")
    min_samples: int = Field(1, ge=1, description="fewest samples that a client may get")
    attempts: int = Field(100, ge=1, description="draws until every client has enough samples")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Deal the rows of each class by a table of counts.

        The rows are in random order.
        """
        self.check_enough(len(data.y), self.min_samples)
        generator = streams.generator("data/partition")
        by_class = [generator.permutation(np.flatnonzero(data.y == label)) for label in range(len(data.class_names))]
        available = np.array([len(rows) for rows in by_class])
        draw = self._draw_equal_sizes if self.equal_sizes else self._draw_unequal_sizes
        counts = draw(available, generator)
        owner = np.repeat(np.tile(np.arange(self.clients), len(counts)), counts.ravel())
        return deal(np.concatenate(by_class), owner, self.clients)

    def _draw_unequal_sizes(self, available: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the number of samples of each class for each client.

        It draws again until no client has too few. Raises `OptionError` after too many attempts.
        """
        concentration = np.full(self.clients, self.alpha)
        for _ in range(self.attempts):
            shares = np.cumsum(generator.dirichlet(concentration, len(available)), axis=1)
            shares[:, -1] = 1.0
            cuts = np.round(shares * available[:, None]).astype(np.int64)
            counts = np.diff(cuts, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_samples:
                return counts
        raise OptionError(
            "alpha",
            f"some client got fewer than {self.min_samples} samples in each of {self.attempts} draws with alpha = "
            f"{self.alpha:g} and {self.clients} clients: raise alpha, use fewer clients or equal_sizes",
        )

    def _draw_equal_sizes(self, available: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw samples of each class for each client, with equal sizes.

        A draw of a class that is used up is repeated among the classes that are left.
        """
        left = available.copy()
        counts = np.zeros((len(available), self.clients), np.int64)
        known = available > 0
        mixtures = np.zeros((self.clients, len(available)))
        mixtures[:, known] = generator.dirichlet(self.alpha * available[known] / available.sum(), self.clients)
        sizes = np.diff(np.linspace(0, available.sum(), self.clients + 1).astype(np.int64))
        for client, (mixture, missing) in enumerate(zip(mixtures, sizes, strict=True)):
            while missing > 0:
                wanted = np.where(left > 0, mixture, 0.0)
                if wanted.sum() == 0:  # nothing is left of the classes that this client was to have
                    wanted = left.astype(np.float64)
                drawn = np.minimum(generator.multinomial(missing, wanted / wanted.sum()), left)
                counts[:, client] += drawn
                left -= drawn
                missing -= drawn.sum()
        return counts


class LabelSkew(RandomPartitioner):
    """Every client holds k classes; the clients that hold a class share it equally (Li et al., 2022, "#C = k").

    Every class is held by at least one client. Sizes differ, because more clients hold one class than another.
    """

    classes: int = Field(2, ge=1, description="classes of each client, k")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Choose the classes of each client, then deal each class out."""
        known, label = np.unique(data.y, return_inverse=True)
        if self.classes > len(known):
            raise OptionError("classes", f"found {self.classes}, but the training samples have only {len(known)}")
        if self.clients * self.classes < len(known):
            message = f"{self.clients} clients with {self.classes} classes each cannot hold all {len(known)} classes"
            raise OptionError("classes", f"{message}: use more classes or more clients")
        generator = streams.generator("data/partition")
        holds = self._holders(len(known), generator)
        order = generator.permutation(len(label))
        owner = np.empty_like(label)
        for number, name in enumerate(known):
            holders = generator.permutation(np.flatnonzero(holds[:, number]))
            rows = order[label[order] == number]
            if len(rows) < len(holders):
                message = f"class {data.class_names[name]!r} has {len(rows)} samples for the {len(holders)} clients"
                raise OptionError("clients", f"{message} that hold it: use fewer clients or fewer classes")
            owner[rows] = holders[np.arange(len(rows)) % len(holders)]
        return deal(order, owner[order], self.clients)

    def _holders(self, known: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Choose the classes of each client, (clients, classes).

        First each class is given to a client in turn; the others are random.
        """
        turn = np.arange(max(self.clients, known))
        rank = generator.random((self.clients, known))
        rank[turn % self.clients, generator.permutation(known)[turn % known]] = -1.0
        holds = np.zeros(rank.shape, np.bool_)
        np.put_along_axis(holds, np.argsort(rank, axis=1)[:, : self.classes], True, axis=1)
        return holds


class Shards(RandomPartitioner):
    """Samples sorted by class and cut into equal shards, of which each client gets a few (McMahan et al., 2017).

    Sizes are equal, up to one sample of every shard. A shard seldom holds more than two classes.
    """

    shards: int = Field(2, ge=1, description="shards of each client")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Cut the sorted samples into shards in random order.

        Samples of a class are in random order.
        """
        self.check_enough(len(data.y), self.shards)
        generator = streams.generator("data/partition")
        order = generator.permutation(len(data.y))
        order = order[np.argsort(data.y[order], kind="stable")]
        owners = generator.permutation(np.repeat(np.arange(self.clients), self.shards))
        shard = np.arange(len(order)) * len(owners) // len(order)
        return deal(order, owners[shard], self.clients)
