"""Items are put into an inherited list without writing it again, from a file or with `--set`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crfl_core.config import LoadedConfig, load_config
from crfl_core.errors import ConfigError

BASE = """
model = { type = "softmax", features = { type = "unit-ball", radius = 4.0 } }
aggregation = [{ type = "norm-bound", bound = 0.7 }, { type = "bucketing", size = 3 }, { type = "rfa" }]
certificates = ["paper"]
"""

Loaded = Callable[..., LoadedConfig]


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """The config of a file that extends the base, with overrides."""

    def load(text: str, *overrides: str, base: str = BASE) -> LoadedConfig:
        (tmp_path / "base.toml").write_text(base)
        (tmp_path / "own.toml").write_text(f'extends = "base.toml"\n{text}')
        return load_config(tmp_path / "own.toml", overrides=overrides)

    return load


def steps(found: LoadedConfig) -> list[str]:
    return [step.configured_as for step in found.config.aggregation]


def test_a_stage_is_put_before_or_after_an_inherited_one(loaded: Loaded) -> None:
    found = loaded('aggregation.before.rfa = "norm-filter"\naggregation.after.norm-bound = "weak-noise"')
    assert steps(found) == ["norm-bound", "weak-noise", "bucketing", "norm-filter", "rfa"]
    assert found.config.aggregation[0].bound == 0.7  # type: ignore[attr-defined]
    assert found.config.aggregation[2].size == 3  # type: ignore[attr-defined]


def test_several_are_put_in_at_once_in_the_order_in_which_they_are_written(loaded: Loaded) -> None:
    found = loaded('aggregation.before.bucketing = ["norm-filter", { type = "weak-noise", std = 0.1 }]')
    assert steps(found) == ["norm-bound", "norm-filter", "weak-noise", "bucketing", "rfa"]


def test_a_position_names_an_item_too(loaded: Loaded) -> None:
    assert steps(loaded('aggregation.before.0 = "norm-filter"'))[0] == "norm-filter"


@pytest.mark.parametrize("rule", ['"krum"', '{ type = "krum", f = 2 }'])
def test_a_rule_alone_is_a_list_of_one(loaded: Loaded, rule: str) -> None:
    found = loaded('aggregation.before.krum = "norm-filter"', base=f"aggregation = {rule}")
    assert steps(found) == ["norm-filter", "krum"]


def test_what_is_not_written_is_the_default(loaded: Loaded) -> None:
    assert steps(loaded('aggregation.before.fedavg = "norm-bound"', base="")) == ["norm-bound", "fedavg"]
    wish = {"before": {"fedavg": {"type": "norm-bound"}}}
    assert steps(load_config({"aggregation": wish})) == ["norm-bound", "fedavg"]


def test_every_list_can_be_added_to(loaded: Loaded) -> None:
    found = loaded('certificates.after.paper = "pathwise-linear"\nmodel.features.before.unit-ball = "identity"')
    assert [certificate.title for certificate in found.config.certificates] == ["paper", "pathwise-linear"]
    assert [one.configured_as for one in found.config.model.features] == ["identity", "unit-ball"]


def test_an_override_does_the_same(loaded: Loaded) -> None:
    found = loaded(
        "", "aggregation.before.rfa=norm-filter", "aggregation.after.norm-bound={type='weak-noise', std=0.1}"
    )
    assert steps(found) == ["norm-bound", "weak-noise", "bucketing", "norm-filter", "rfa"]
    assert steps(load_config(overrides=["aggregation.before.fedavg=norm-filter"]))[-2:] == ["norm-filter", "fedavg"]


def test_an_override_reaches_into_what_was_put_in(loaded: Loaded) -> None:
    found = loaded('aggregation.after.norm-bound = "weak-noise"', "aggregation.weak-noise.std=0.25")
    assert found.config.aggregation[1].std == 0.25  # type: ignore[attr-defined]


def test_every_item_still_knows_where_it_was_written(loaded: Loaded) -> None:
    found = loaded(
        'aggregation.after.norm-bound = { type = "weak-noise", std = 0.1 }', "aggregation.before.rfa=norm-filter"
    )
    origins = [Path(found.origins.of(("aggregation", str(position), "type"))).name for position in range(5)]
    override = "--set aggregation.before.rfa=norm-filter"
    assert origins == ["base.toml", "own.toml", "base.toml", override, "base.toml"]
    assert Path(found.origins.of(("aggregation", "2", "size"))).name == "base.toml"
    single = loaded('aggregation.before.krum = "norm-filter"', base='aggregation = { type = "krum", f = 2 }')
    assert Path(single.origins.of(("aggregation", "1", "f"))).name == "base.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'aggregation.before.rf = "norm-filter"',
            r"own\.toml: aggregation\.before\.rf: aggregation has no item 'rf': it has norm-bound, bucketing, rfa",
        ),
        ('aggregation.after.rfa = "norm-filter"', "'norm-filter' is a stage: the last entry must be a rule"),
        ('aggregation.after.norm-bound = "norm-filte"', r"own\.toml: aggregation\.1.*did you mean 'norm-filter'"),
    ],
)
def test_what_cannot_be_put_in_is_refused_by_name(loaded: Loaded, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(text)


def test_an_override_that_names_no_item_says_which_there_are(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"^--set aggregation\.before\.x=rfa: .* no item 'x': it has norm-bound"):
        loaded("", "aggregation.before.x=rfa")
