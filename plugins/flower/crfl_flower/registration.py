"""What nodes say before the first round, and what they are told: how many samples they hold, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from crfl_core.extend import Data, DataError
from crfl_flower.wire import Malformed, Words


@dataclass(frozen=True)
class Question:
    """What the server has to say about inputs before a node can tell whether its own are of the same kind."""

    client: int
    token: str
    inputs: int
    classes: tuple[str, ...]
    domain: tuple[float, float]
    scaling: str
    max_samples: int

    @staticmethod
    def of(data: Data, client: int, token: str, max_samples: int) -> Question:
        """The question to one client; `data` are those of the server."""
        domain = data.domain.low, data.domain.high
        return Question(client, token, data.test_x.shape[1], data.class_names, domain, scaling_of(data), max_samples)

    def content(self) -> RecordDict:
        """The question as Flower sends it."""
        words = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return RecordDict({"question": ConfigRecord(words)})

    @staticmethod
    def read(message: Message) -> Question:
        """The question in a message of the server."""
        words: Words = dict(message.content.config_records["question"])
        words |= {name: tuple(value) for name, value in words.items() if isinstance(value, list)}
        return Question(**words)

    def answer(self, data: Data) -> RecordDict:
        """What a node with these data says. Raises `DataError` if they are not like those of the server."""
        for what, own, theirs in (
            ("features", data.x.shape[1], self.inputs),
            ("classes", data.class_names, self.classes),
            ("domain", (data.domain.low, data.domain.high), self.domain),
            ("scaling", scaling_of(data), self.scaling),
        ):
            if own != theirs:
                raise DataError(f"samples of this node have {what} {own}, the server says {theirs}: read them alike")
        words: Words = {"client": self.client, "token": self.token, "samples": min(len(data.x), self.max_samples)}
        return RecordDict({"answer": ConfigRecord(words)})


def scaling_of(data: Data) -> str:
    """How inputs were scaled, if not by constants that all know: what was fitted to data differs from node to node."""
    scaling = data.scaling
    return f"{scaling.kind} {scaling.shift.tolist()} {scaling.factor.tolist()}" if scaling.fitted else "public"


def read_samples(question: Question, message: Message) -> int:
    """The number of samples in an answer, capped. Raises `Malformed` if it is no answer to this question."""
    if message.has_error():
        raise Malformed(f"an error, {(message.error.reason or '')[:80]!r}")
    if set(message.content) != {"answer"} or set(message.content.config_records) != {"answer"}:
        raise Malformed(f"records {sorted(map(str, message.content))[:4]}")
    said = message.content.config_records["answer"]
    if said.get("client") != question.client or said.get("token") != question.token:
        raise Malformed(f"an answer for client {str(said.get('client'))[:40]!r}")
    samples = said.get("samples")
    if type(samples) is not int or samples < 1:
        raise Malformed(f"{str(samples)[:40]!r} samples")
    return min(samples, question.max_samples)
