"""The page: every claim of the paper beside what was measured, with a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crfl_paper.claims import Verdict

PICTURES = "pictures/reproduction"
"""Where the pictures lie, from the page."""


@dataclass(frozen=True)
class Finding:
    """A claim with one test of it: what was tested, what was measured, and what follows. `reason` if nothing was."""

    quotation: str
    section: str
    tested: str
    measured: str
    verdict: Verdict
    reason: str = ""

    @property
    def said(self) -> str:
        """The verdict, with the reason if there is none."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(frozen=True)
class Section:
    """A figure of the paper on one dataset. `picture` is a file in `PICTURES`, empty if nothing was drawn."""

    name: str
    title: str
    number: str
    dataset: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    picture: str = ""


DEVIATIONS = (
    "Models start at zero, the authors' at random. Softmax regression is convex, so this matters in early rounds only.",
    "The radius abstains where p_A <= p_B; the authors' code squares the difference and never does.",
    "L_Z is that of the clipping norm in the attacked round, as the text says. The authors' code has 3 on MNIST in "
    "every round (the value of round 10), and 4 on EMNIST, where Table 1 gives 6.5.",
    "tau is that of Table 1; the authors' code certifies with 174 on EMNIST (table: 70) and 35 on LOAN (table: 143).",
    "Weights are n_i / n, as in the paper; the authors' code has 1 / N, which differs on LOAN only.",
    "The backdoored test set leaves out the target class.",
    "T is not in Table 1: it is that of the authors' configs, 100, on EMNIST 150.",
    "The paper certifies 5,000 MNIST samples; the first 5,000 of the test set, used here, are its harder half.",
)


def page(sections: Sequence[Section], how: str) -> str:
    """The page in Markdown. `how` says what was run."""
    return "\n".join(lines(sections, how))


def lines(sections: Sequence[Section], how: str) -> Iterator[str]:
    """Line by line."""
    yield "# The paper, figure by figure"
    yield ""
    yield f"Written by `crfl reproduce`. {how}"
    yield ""
    yield (
        "Radii are those of the certificate `paper`: Corollary 1 of *CRFL: Certifiably Robust Federated Learning "
        "against Backdoor Attacks* (Xie, Chen, Chen, Li; ICML 2021), a reproduction and "
        "[not a proof](certificates.md). Verdicts are computed: a claim holds if every step of its test does, with "
        "several seeds if an interval of Student's t (one-sided, 95 %) lies above zero, with one seed if the number "
        "does. Tolerances are ours."
    )
    yield ""
    yield "| figure | data | tested | verdict |"
    yield "| --- | --- | --- | --- |"
    for section in sections:
        for finding in section.findings:
            yield f"| {section.title} ({section.number}) | {section.dataset} | {finding.tested} | {finding.said} |"
    yield ""
    yield "## Known deviations"
    yield ""
    for deviation in DEVIATIONS:
        yield f"- {deviation}"
    for section in sections:
        if section.picture:
            yield from one(section)


def one(section: Section) -> Iterator[str]:
    """A figure that was measured."""
    yield ""
    yield f"## {section.title}, {section.dataset} ({section.number})"
    yield ""
    yield f"![{section.title}]({PICTURES}/{section.picture})"
    for finding in section.findings:
        yield ""
        yield f"> {finding.quotation}"
        yield f"> ({finding.section})"
        yield ""
        yield f"- tested: {finding.tested}"
        yield f"- measured: {finding.measured}"
        yield f"- verdict: **{finding.said}**"
    yield ""
    yield from section.notes
