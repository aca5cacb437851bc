"""EMNIST: digits and letters in the format of MNIST."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits
from typing import Literal

from pydantic import Field

from crfl_core.extend import Data, DataFile, DataSource
from crfl_datasets.idx import IdxFileNames, ImageDataset

Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

MERGED = digits + ascii_uppercase + "abdefghnqrt"
"""Letters that look alike in both cases are one class."""

CHARACTERS: dict[Split, str] = {
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": ascii_uppercase,  # each stands for both cases
    "digits": digits,
    "mnist": digits,
}
"""The character of every class."""

ARCHIVE = DataFile("gzip.zip", size=561753746, urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",))
FILES = (
    ("balanced-test-images-idx3", "117fc12b015e37ea98bfb2cbba3f77c3782c056cdbd219b87abfc8661d7135db", 4714707),
    ("balanced-test-labels-idx1", "a67cac948379b67270b9a4d0a01c8ec661598accf2f2b1964340b7c83cb175cd", 13504),
    ("balanced-train-images-idx3", "74295e75e4e9fa2c102147460ee7eb763653d5132d883a84fb88932bfb8d2db4", 28207740),
    ("balanced-train-labels-idx1", "b46d41e5156a0a8aaaa4d18979fdd1588850fa8571018acffd5d93b325a7d6ed", 80618),
    ("byclass-test-images-idx3", "5ec835bd5d5b1a66378a132e727fef20fe994b3cc666899befcca5ac766f50cd", 28908322),
    ("byclass-test-labels-idx1", "501e305eeeacb093b162592d80e8a2632040872360fa6d85cfcb2200d91ca92a", 81839),
    ("byclass-train-images-idx3", "9e21987f03a6eb8b870187e785883ddad96947299587908f1a7ec2ca0f4be5f0", 173367313),
    ("byclass-train-labels-idx1", "f7ef403d48dc18a89dae0d83d11ee69cecb6e1c12c3a961d03712e495c02a8fa", 491603),
    ("bymerge-test-images-idx3", "5e5815ec1b522089134435f7c55e75a00960b58414793593ffff23efc0821683", 28905295),
    ("bymerge-test-labels-idx1", "8bda1516255683ba9071e141947ca0c91a911176065cdd6259b0b4d8dc5b5f35", 79351),
    ("bymerge-train-images-idx3", "39bf8c68037dad40db35348895f7e4e056e8c0a005ab78869c9fbc2c96e947be", 173375281),
    ("bymerge-train-labels-idx1", "2c47293b9e62d6abf6ad05fbf67e40baa32adfd380b8d7b44dcc35534b64e1f1", 476444),
    ("digits-test-images-idx3", "20ebe43509264f7639d37c835a3f0b009e90b29e00a099a03101abe1644a3f63", 9908519),
    ("digits-test-labels-idx1", "bad1834c45d5988e270b99d43b13edc3fd898f658ffbc2caf2846ef27f7b05b0", 19960),
    ("digits-train-images-idx3", "f7c95004d14d81af89522e67d8f0c781dfb3bd544181c81bfe1eb6b41c35b726", 59515779),
    ("digits-train-labels-idx1", "6638a6ff5fe2eefd9cca2471995b46c82986b8e4b2a70d2f5ce8e05d7edb319e", 113859),
    ("letters-test-images-idx3", "50f0e93d75b99b463e9760b8345866f22587fa2c2fba472730a5ba09c693412d", 5039157),
    ("letters-test-labels-idx1", "924955c31fe7fd809b7303b5c0141282955f4b8390c74cdfd5d80435e0f4b4cb", 144),
    ("letters-train-images-idx3", "6288f418a917e007bf5fddb823a2dc7a5c6a35031401b93292a539cb12bd881f", 30804864),
    ("letters-train-labels-idx1", "9759af91ea6bccdf07a6040fd085861f2ec88e37f7c3f5760f6feb57106fbe5c", 79283),
    ("mnist-test-images-idx3", "b25640fa9e356c618132f5df347c95ef5bae6d9c2596be1de40f7e0ae1c3eac6", 2484884),
    ("mnist-test-labels-idx1", "bcc5385d38f083dba046f5f756e99b32f5ea7fad122c6243c71c2239873065ca", 5144),
    ("mnist-train-images-idx3", "5f9942f441031c0f1f2e4d162059fd6e19ea808b34c328b6d16cab0ed24c78f2", 14873795),
    ("mnist-train-labels-idx1", "00c6d3c2342fdffb1711e0b5656cac4ce5862d2826399d383a9bac07d612e9f8", 29480),
)
"""Part of the name between `emnist-` and `-ubyte.gz`, the checksum and the size of every file."""


class Emnist(ImageDataset):
    """Handwritten digits and letters, 28 x 28 pixels (Cohen et al., 2017); `bymerge` is the paper's EMNIST."""

    split: Split = Field(
        "bymerge",
        description="byclass: 62 classes, 697,932 for training; bymerge: the same images in 47 classes; balanced: 47 "
        "equally frequent classes; letters: 26; digits, mnist: 10",
    )

    @classmethod
    def source(cls) -> DataSource:
        """Describe the files of all splits, which are published in one archive."""
        return DataSource(
            folder="emnist",
            files=tuple(DataFile(file_name(part), sha256, size) for part, sha256, size in FILES),
            licence="none stated; a work of NIST, derived from its Special Database 19",
            homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
            how_to_get="run `crfl data fetch emnist`",
            archive=ARCHIVE,
        )

    def read(self) -> Data:
        """Read all images of the split, turned upright."""
        first = 1 if self.split == "letters" else 0
        return self.read_files(
            split_file_names(self.split), tuple(CHARACTERS[self.split]), first_label=first, turned=True
        )


def split_file_names(split: Split) -> IdxFileNames:
    """Return the names of the four files of a split."""
    parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    return IdxFileNames(*(file_name(f"{split}-{part}") for part in parts))


def file_name(part: str) -> str:
    """Return the name of a file.

    >>> file_name("letters-test-labels-idx1")
    'emnist-letters-test-labels-idx1-ubyte.gz'
    """
    return f"emnist-{part}-ubyte.gz"
