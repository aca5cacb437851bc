"""MNIST and Fashion-MNIST."""

from __future__ import annotations

from crfl_core.extend import Data, DataSource
from crfl_datasets.idx import MNIST_FILE_NAMES, ImageDataset, make_data_file

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = (
    (MNIST_FILE_NAMES.train_images, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    (MNIST_FILE_NAMES.train_labels, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    (MNIST_FILE_NAMES.test_images, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    (MNIST_FILE_NAMES.test_labels, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
)


class Mnist(ImageDataset):
    """Handwritten digits, 28 x 28 pixels, 60,000 for training and 10,000 for testing (LeCun et al., 1998)."""

    @classmethod
    def source(cls) -> DataSource:
        """Describe the four original files."""
        return DataSource(
            folder="mnist",
            files=tuple(make_data_file(*file, MIRRORS) for file in FILES),
            licence="CC BY-SA 3.0, as commonly cited (LeCun, Cortes, Burges)",
            homepage="https://yann.lecun.com/exdb/mnist/",
            how_to_get="run `crfl data fetch mnist`",
        )

    def read(self) -> Data:
        """Read all images."""
        return self.read_files(MNIST_FILE_NAMES, tuple(map(str, range(10))))


FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
FASHION_FILES = (
    (MNIST_FILE_NAMES.train_images, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880),
    (MNIST_FILE_NAMES.train_labels, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515),
    (MNIST_FILE_NAMES.test_images, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102),
    (MNIST_FILE_NAMES.test_labels, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148),
)
FASHION_CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


class FashionMnist(ImageDataset):
    """Articles of clothing, 28 x 28 pixels, 60,000 for training and 10,000 for testing (Xiao et al., 2017)."""

    @classmethod
    def source(cls) -> DataSource:
        """Describe the four original files."""
        return DataSource(
            folder="fashion-mnist",
            files=tuple(make_data_file(*file, FASHION_MIRRORS) for file in FASHION_FILES),
            licence="MIT (Zalando SE)",
            homepage="https://github.com/zalandoresearch/fashion-mnist",
            how_to_get="run `crfl data fetch fashion-mnist`",
        )

    def read(self) -> Data:
        """Read all images."""
        return self.read_files(MNIST_FILE_NAMES, FASHION_CLASSES)
