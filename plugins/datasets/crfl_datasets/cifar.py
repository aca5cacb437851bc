"""CIFAR-10, in the binary format of its authors.

A file has records of one label byte and 3,072 bytes of pixels: a red, a green and a blue plane of 32 rows each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, DataError, DataFile, DataSource, Domain, FileDataset

IMAGE_SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
FILE_SIZE = 10_000 * RECORD
REMEDY = "check it with `crfl data verify`, and fetch or copy it again"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
ARCHIVE = DataFile(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)


class Cifar10(FileDataset):
    """Colour images of ten classes, 32 x 32 pixels, 50,000 for training and 10,000 for testing (Krizhevsky, 2009)."""

    @classmethod
    def source(cls) -> DataSource:
        """Describe the six files, which are published in one archive."""
        return DataSource(
            folder="cifar-10-batches-bin",
            files=tuple(DataFile(name, digest, FILE_SIZE) for name, digest in FILES),
            licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
            how_to_get="run `crfl data fetch cifar-10`",
            archive=ARCHIVE,
        )

    def read(self) -> Data:
        """Read all images; each is flat, plane by plane."""
        *training, test = (read_records(self.file(name)) for name, _ in FILES)
        records = np.concatenate(training)
        channels = ("red", "green", "blue")
        return Data(
            x=records[:, 1:],
            y=records[:, 0].astype(np.int64),
            test_x=test[:, 1:],
            test_y=test[:, 0].astype(np.int64),
            domain=Domain(0.0, 255.0),
            class_names=CLASSES,
            feature_names=tuple(
                f"{name}_{row}_{column}" for name in channels for row in range(32) for column in range(32)
            ),
            image_shape=IMAGE_SHAPE,
        )


def read_records(path: Path) -> NDArray[np.uint8]:
    """Read the records of a file, (images, 3073).

    The first byte of a record is the label.
    """
    try:
        content = np.fromfile(path, np.uint8, count=FILE_SIZE + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not len(content) or len(content) > FILE_SIZE or len(content) % RECORD:
        found = "more" if len(content) > FILE_SIZE else f"{len(content)} bytes"
        raise DataError(f"{path}: must have up to 10,000 records of {RECORD} bytes, found {found}: {REMEDY}")
    records = content.reshape(-1, RECORD)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if len(wrong):
        raise DataError(
            f"{path}: label {records[wrong[0], 0]} of image {wrong[0]} is not within 0..{len(CLASSES) - 1}: {REMEDY}"
        )
    return records
