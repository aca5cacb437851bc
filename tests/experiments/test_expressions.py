"""Expressions over keys compute, and do nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from crfl_experiments.sweeps.expressions import Expression, sort_links
from hypothesis import given
from hypothesis import strategies as st

from crfl_core.errors import ConfigError

KNOWN: dict[str, Any] = {
    "rounds": 50,
    "partition.clients": 20,
    "server.noise_std": 0.01,
    "aggregation.0.f": 2,
    "certificates.pathwise-linear.scale": 3,
    "model.type": "softmax",
    "server.clip_norm": {"start": 2.0, "slope": 0.1},
}


def value(text: str) -> Any:
    def lookup(key: str) -> Any:
        if key not in KNOWN:
            raise KeyError(f"{key} is not set in this config")
        return KNOWN[key]

    return Expression("some.key", text).value(lookup)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("600 // partition.clients", 30),
        ("600 / partition.clients", 30.0),
        ("2 * (rounds - 1) % 7", 0),
        ("-server.noise_std ** 2", -(0.01**2)),
        ("min(rounds, 2 * partition.clients, 45)", 40),
        ("int(round(rounds / 3, 0))", 17),
        ("sqrt(abs(-4.0))", 2.0),
        ("aggregation[0].f + 1", 3),
        ('certificates["pathwise-linear"].scale * 2', 6),
    ],
)
def test_arithmetic_over_keys(text: str, expected: float) -> None:
    assert value(text) == pytest.approx(expected)


def test_a_key_alone_may_have_any_value() -> None:
    assert value("server.clip_norm") == {"start": 2.0, "slope": 0.1}
    assert value("model.type") == "softmax"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("__import__('os')", "there is no function __import__"),
        ("__import__('os').getcwd()", "is not arithmetic"),
        ("eval('1')", "there is no function eval"),
        ("(lambda x: x)(1)", "there is no function"),
        ("[rounds for rounds in (1, 2)]", "is not arithmetic"),
        ("rounds if rounds else 1", "is not arithmetic"),
        ("rounds == 50", "is not arithmetic"),
        ("True + 1", "is not arithmetic"),
        ("'text'", "is not arithmetic"),
        ("1 +", "cannot be read"),
        ("1 / (rounds - 50)", "cannot be computed: division by zero"),
        ("10.0 ** 64 ** 2", "an exponent is at most 64"),
        ("9 ** 9 ** 9", "an exponent is at most 64"),
        ("(-8) ** 0.5", "not a finite number"),
        ("2 * model.type", "letter 5: model.type is 'softmax', which is not a number"),
        ("2 * missing.key", "letter 5: missing.key is not set"),
        ("max()", "is not arithmetic"),
        ("1" * 301, "longer than 300 letters"),
    ],
)
def test_whatever_is_no_arithmetic_is_refused_with_its_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.linked: some\.key") as caught:
        value(text)
    assert complaint in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_compute_or_complain(text: str) -> None:
    try:
        found = value(text)
    except ConfigError:
        return
    assert found in KNOWN.values() or math.isfinite(found)


def test_expressions_come_behind_those_they_need() -> None:
    links = {"a": Expression("a", "b + 1"), "b": Expression("b", "c"), "d": Expression("d", "a + b")}
    assert [one.key for one in sort_links(links)] == ["b", "a", "d"]


def test_a_circle_is_named() -> None:
    links = {"a": Expression("a", "b"), "b": Expression("b", "c"), "c": Expression("c", "a")}
    with pytest.raises(ConfigError, match="in a circle: a -> b -> c -> a"):
        sort_links(links)
