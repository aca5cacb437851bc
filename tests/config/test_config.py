"""Config files, inheritance and overrides: one frozen object, and where each of its values was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crfl_core import RunConfig, dump_config, load_config
from crfl_core.config import LoadedConfig
from crfl_core.config.options import list_settings
from crfl_core.extend import ConfigError, Registry
from crfl_core.records.schedules import Linear, RoundRange

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a config file."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write_file


def options(config: RunConfig) -> Any:
    """The whole config as plain data."""
    return config.model_dump(mode="json")


class TestFiles:
    def test_toml_is_read(self, write: Write) -> None:
        config = load_config(write("run.toml", 'rounds = 7\n[partition]\ntype = "dirichlet"\nalpha = 0.5\n')).config
        assert config.rounds == 7
        assert options(config)["partition"] == {
            "type": "dirichlet",
            "clients": 20,
            "alpha": 0.5,
            "equal_sizes": False,
            "min_samples": 1,
            "attempts": 100,
        }

    def test_yaml_means_the_same_as_toml(self, write: Write) -> None:
        toml = 'rounds = 7\nattack = {type = "model-replacement", rounds = [2, 3]}\naggregation = [{type = "fedavg"}]\n'
        yaml = "rounds: 7\nattack: {type: model-replacement, rounds: [2, 3]}\naggregation:\n  - type: fedavg\n"
        expected = load_config(write("run.toml", toml)).config
        assert load_config(write("run.yaml", yaml)).config == expected
        assert load_config(write("run.yml", yaml)).config == expected

    def test_an_empty_file_is_all_defaults(self, write: Write) -> None:
        assert load_config(write("run.toml", "")).config == load_config(write("run.yaml", "")).config

    def test_without_a_file_it_is_an_attacked_run_on_embedded_data(self) -> None:
        config = load_config().config
        assert config.name == "digits"
        assert config.dataset.configured_as == "digits"
        assert config.attack is not None

    def test_a_plugin_may_be_given_by_its_name_alone_and_a_list_by_its_only_item(self, write: Write) -> None:
        short = load_config(write("a.toml", 'dataset = "digits"\naggregation = "fedavg"\n[model]\ntype = "softmax"\n'))
        assert short.config == load_config({}).config

    def test_a_config_is_frozen(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            load_config().config.rounds = 3  # type: ignore[misc]


class TestExtends:
    def test_files_extend_each_other_in_a_chain(self, write: Write) -> None:
        write("base.toml", "rounds = 5\nseed = 1\n[training]\nsteps = 3\nbatch_size = 8\n")
        write("middle.toml", 'extends = "base.toml"\nseed = 2\n[training]\nsteps = 4\n')
        config = load_config(write("top.toml", 'extends = "middle.toml"\n[training]\nlearning_rate = 0.3\n')).config
        assert (config.rounds, config.seed) == (5, 2)
        assert (config.training.steps, config.training.batch_size) == (4, 8)
        assert config.training.learning_rate == 0.3

    def test_the_later_of_several_bases_wins(self, write: Write) -> None:
        write("one.toml", "rounds = 5\nseed = 1\n")
        write("two.toml", "seed = 2\n")
        config = load_config(write("top.toml", 'extends = ["one.toml", "two.toml"]\n')).config
        assert (config.rounds, config.seed) == (5, 2)

    def test_a_base_is_relative_to_the_file_that_names_it_and_may_be_yaml(self, write: Write) -> None:
        write("shared/base.yaml", "rounds: 5\n")
        write("shared/more.toml", 'extends = "base.yaml"\n')
        assert load_config(write("top.toml", 'extends = "shared/more.toml"\n')).config.rounds == 5

    def test_two_files_may_share_a_base(self, write: Write) -> None:
        write("base.toml", "rounds = 5\n")
        write("one.toml", 'extends = "base.toml"\nseed = 1\n')
        write("two.toml", 'extends = "base.toml"\nseed = 2\n')
        assert load_config(write("top.toml", 'extends = ["one.toml", "two.toml"]\n')).config.rounds == 5

    def test_a_circle_is_an_error(self, write: Write) -> None:
        write("a.toml", 'extends = "b.toml"\n')
        with pytest.raises(ConfigError, match=r"b\.toml: extends: the files extend each other in a circle"):
            load_config(write("b.toml", 'extends = "a.toml"\n'))

    def test_a_missing_base_is_an_error_that_names_both_files(self, write: Write) -> None:
        with pytest.raises(ConfigError, match=r"top\.toml: extends = 'nix\.toml': there is no file .*nix\.toml"):
            load_config(write("top.toml", 'extends = "nix.toml"\n'))

    def test_a_mapping_cannot_extend_a_file(self) -> None:
        with pytest.raises(ConfigError, match="extends: only a file can extend another"):
            load_config({"extends": "base.toml"})


class TestMerging:
    BASE = """
        trackers = [{ type = "progress" }, { type = "jsonl" }]
        [attack]
        type = "model-replacement"
        rounds = [1, 2, 3]
        trigger = { type = "pixels", size = 3, norm = 2.0 }
        [partition]
        type = "dirichlet"
        clients = 9
        alpha = 0.3
    """

    @pytest.fixture
    def merged(self, write: Write) -> Callable[[str], RunConfig]:
        write("base.toml", self.BASE)
        return lambda text: load_config(write("top.toml", 'extends = "base.toml"\n' + text)).config

    def test_tables_merge_at_any_depth(self, merged: Callable[[str], RunConfig]) -> None:
        attack = options(merged("[attack.trigger]\nsize = 4\n"))["attack"]
        assert attack["rounds"] == [1, 2, 3]
        assert attack["trigger"] == {"type": "pixels", "norm": 2.0, "size": 4, "corner": "top-left"}

    def test_naming_the_same_type_again_still_merges(self, merged: Callable[[str], RunConfig]) -> None:
        partition = options(merged('partition = { type = "dirichlet", alpha = 0.7 }\n'))["partition"]
        assert (partition["clients"], partition["alpha"]) == (9, 0.7)

    def test_options_join_a_plugin_that_the_base_gave_by_name_alone(self, write: Write) -> None:
        write("base.toml", "partition = 'dirichlet'\n")
        top = write("top.toml", "extends = 'base.toml'\npartition = { alpha = 0.3 }\n")
        partition = options(load_config(top).config)["partition"]
        assert (partition["type"], partition["alpha"]) == ("dirichlet", 0.3)

    def test_arrays_replace(self, merged: Callable[[str], RunConfig]) -> None:
        config = merged('trackers = [{ type = "jsonl", path = "a" }]\n[attack]\nrounds = [4]\n')
        assert options(config)["attack"]["rounds"] == [4]
        assert [tracker.configured_as for tracker in config.trackers] == ["jsonl"]

    @pytest.mark.parametrize("text", ['attack = "none"', 'attack = { type = "none" }'])
    def test_none_switches_an_inherited_attack_off(self, merged: Callable[[str], RunConfig], text: str) -> None:
        assert merged(text).attack is None


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "read", "expected"),
        [
            ("rounds=5", lambda config: config.rounds, 5),
            (" training.learning_rate = 0.25 ", lambda config: config.training.learning_rate, 0.25),
            ("training.learning_rate=[0.1, 0.2]", lambda config: config.training.learning_rate, (0.1, 0.2)),
            ("name=plain-text", lambda config: config.name, "plain-text"),
            ('name="quoted"', lambda config: config.name, "quoted"),
            ("server.clip_norm={start = 1.0, slope = 0.5}", lambda c: c.server.clip_norm, Linear(start=1.0, slope=0.5)),
            ("server.clip_norm=[3, 4]", lambda config: config.server.clip_norm, (3.0, 4.0)),
            ("attack.rounds={first=1, every=2}", lambda config: config.attack.rounds, RoundRange(first=1, every=2)),
            ("attack=none", lambda config: config.attack, None),
            ("attack.type=none", lambda config: config.attack, None),
            ("dataset=digits", lambda config: config.dataset.configured_as, "digits"),
            ("seeds.noise=4", lambda config: config.seeds.noise, 4),
            ("certificates.0.name=mine", lambda config: config.certificates[0].title, "mine"),
            ("certificates.paper.name=mine", lambda config: config.certificates[0].title, "mine"),
            ("aggregation.fedavg.weighting=uniform", lambda config: config.aggregation[-1].weighting, "uniform"),
            ('aggregation.0={weighting="uniform"}', lambda config: config.aggregation[-1].weighting, "uniform"),
            ("votes.models=10", lambda config: config.votes.models, 10),
        ],
    )
    def test_a_key_gets_a_value(self, override: str, read: Callable[[Any], object], expected: object) -> None:
        overrides = ["rounds=2", "attack.rounds=[1]", override]
        assert read(load_config(overrides=overrides).config) == expected

    def test_items_are_found_by_name_before_type(self, write: Write) -> None:
        path = write("run.toml", 'certificates = [{ type = "paper" }, { type = "paper", name = "other" }]\n')
        config = load_config(path, overrides=["certificates.other.votes.models=7"]).config
        assert [certificate.votes.models for certificate in config.certificates] == [None, 7]

    def test_they_reach_into_plugins_that_only_the_schema_names(self, write: Write) -> None:
        overrides = ["certificates.paper.votes.models=7", "engine.threads=1"]
        config = load_config(write("run.toml", ""), overrides=overrides).config
        assert config.certificates[0].votes.models == 7
        assert options(config)["engine"]["threads"] == 1

    @pytest.mark.parametrize(
        ("text", "override", "key", "expected"),
        [
            ("partition = 'dirichlet'", "partition.alpha=0.3", "partition", {"type": "dirichlet", "alpha": 0.3}),
            ("trackers = ['jsonl']", "trackers.0.path=a", "trackers", [{"type": "jsonl", "path": "a"}]),
            ("trackers = ['jsonl']", "trackers.jsonl.path=a", "trackers", [{"type": "jsonl", "path": "a"}]),
            ("trackers = 'jsonl'", "trackers.0.path=a", "trackers", [{"type": "jsonl", "path": "a"}]),
            ("trackers = { type = 'jsonl' }", "trackers.0.path=a", "trackers", [{"type": "jsonl", "path": "a"}]),
        ],
    )
    def test_they_reach_into_a_plugin_however_it_was_written(
        self, write: Write, text: str, override: str, key: str, expected: Any
    ) -> None:
        config = options(load_config(write("run.toml", text), overrides=[override]).config)
        if isinstance(expected, dict):
            assert expected.items() <= config[key].items()
        else:
            assert config[key] == expected

    def test_they_apply_in_order(self) -> None:
        assert load_config(overrides=["rounds=31", "rounds=32"]).config.rounds == 32

    def test_a_config_can_be_changed_by_overrides_again(self) -> None:
        config = load_config(overrides=["rounds=31"]).config
        changed = load_config(config, overrides=["seed=5"]).config
        assert (changed.rounds, changed.seed) == (31, 5)
        assert load_config(config).config == config


def origins(loaded: LoadedConfig) -> dict[str, str]:
    """Where each setting was written, by its text."""
    return {f"{setting.key} = {setting.text}": setting.origin for setting in list_settings(loaded)}


class TestOrigins:
    def test_every_value_knows_where_it_was_written(self, write: Write) -> None:
        base = write("base.toml", "seed = 1\nrounds = 5\n[training]\nsteps = 3\nbatch_size = 8\n")
        top = write("top.toml", 'extends = "base.toml"\nrounds = 6\n[training]\nsteps = 4\n')
        found = origins(load_config(top, overrides=["training.batch_size=9", "aggregation.0.weighting=uniform"]))
        assert found["seed = 1"] == str(base)
        assert found["rounds = 6"] == str(top)
        assert found["training.steps = 4"] == str(top)
        assert found["training.batch_size = 9"] == "--set training.batch_size=9"
        assert found["training.learning_rate = 0.05"] == "default"
        assert found['aggregation.0.weighting = "uniform"'] == "--set aggregation.0.weighting=uniform"
        assert found['dataset.type = "digits"'] == "default"

    def test_an_override_of_one_list_item_leaves_the_origin_of_the_others(self, write: Write) -> None:
        path = write("run.toml", 'trackers = [{ type = "jsonl", path = "a" }, { type = "jsonl", path = "b" }]\n')
        found = origins(load_config(path, overrides=["trackers.1.path=c"]))
        assert found['trackers.0.path = "a"'] == str(path)
        assert found['trackers.1.path = "c"'] == "--set trackers.1.path=c"
        assert found['trackers.1.type = "jsonl"'] == str(path)

    def test_a_mapping_is_an_origin_too(self) -> None:
        assert origins(load_config({"rounds": 3}))["rounds = 3"] == "the mapping given to crfl_core"

    def test_an_error_names_the_file_that_wrote_the_key_not_the_one_that_was_run(self, write: Write) -> None:
        base = write("base.toml", "[server]\nclip_norm = [1.0, 2.0]\n")
        top = write("top.toml", 'extends = "base.toml"\nrounds = 3\n')
        with pytest.raises(ConfigError) as stop:
            load_config(top)
        assert str(stop.value) == (
            f"{base}: server.clip_norm = [1.0, 2.0]: a list needs one value per round: found 2 for 3 rounds"
        )

    def test_all_wrong_keys_are_reported_at_once(self, write: Write) -> None:
        path = write("run.toml", 'rounds = 0\n[votes]\nalpha = 2.0\n[dataset]\ntype = "digits"\ntest_fraction = 1.0\n')
        with pytest.raises(ConfigError) as stop:
            load_config(path)
        assert [line.removeprefix(f"{path}: ").partition(":")[0] for line in str(stop.value).splitlines()] == [
            "rounds = 0",
            "dataset.test_fraction = 1.0",
            "votes.alpha = 2.0",
        ]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("model = { type = 'softmax', features = [{ type = 'unit-ball', radius = -1 }] }",
             "model.features.0.radius = -1: must be greater than 0"),
            ("model = { type = 'softmax', features = { type = 'unit-ball', radius = -1 } }",
             "model.features.0.radius = -1: must be greater than 0"),
            ("trackers = [{ type = 'progress' }, { type = 'jsonl', paths = 'a' }]",
             "trackers.1.paths = 'a': unknown key; did you mean 'path'? known: path"),
            ("certificates = { type = 'paper', votes = { alpha = 1 } }",
             "certificates.0.votes.alpha = 1: must be less than 1"),
            ("attack = { type = 'model-replacement', trigger = { type = 'pixel' } }",
             "attack.trigger.type = 'pixel': must be one of 'pixels', 'features'"),
            ("attack = { type = 'model-replacement', trigger = { type = 'pixels', size = 0 } }",
             "attack.trigger.size = 0: must be greater than or equal to 1"),
            ("attack = { type = 'model-replacement', trigger = { type = 'features' } }",
             "attack.trigger.features: is missing, and has no default: indices of the features"),
            ("attack = { type = 'model-replacement', trigger = { size = 3 } }",
             "attack.trigger.type: is missing"),
            ("server = { clip_norm = { start = 1.0 } }",
             "server.clip_norm.slope: is missing, and has no default"),
            ("training = { learning_rate = [0.1, -0.1] }",
             "training.learning_rate.1 = -0.1: must be greater than 0"),
            ("dataset = { scaling = 'none' }",
             "dataset: needs `type`, the name of an installed dataset: `crfl plugins` lists them"),
        ],
    )  # fmt: skip
    def test_options_of_plugins_have_exact_locations(self, write: Write, text: str, sentence: str) -> None:
        path = write("run.toml", text)
        with pytest.raises(ConfigError) as stop:
            load_config(path)
        assert str(stop.value) == f"{path}: {sentence}"


SCHEDULES = st.one_of(
    st.floats(0.01, 50),
    st.lists(st.floats(0.01, 50), min_size=4, max_size=4),
    st.fixed_dictionaries({"start": st.floats(0.5, 9), "slope": st.floats(0, 3)}),
)
REGISTRY = Registry()
CONFIGS = st.fixed_dictionaries(
    {"rounds": st.just(4)},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
        "seed": st.integers(0, 2**63 - 1),
        "seeds": st.fixed_dictionaries({}, optional={"data": st.integers(0, 9), "votes": st.integers(0, 9)}),
        "dtype": st.sampled_from(["float32", "float64"]),
        "partition": st.one_of(
            st.just("iid"),
            st.fixed_dictionaries({"type": st.just("dirichlet"), "alpha": st.floats(1e-3, 1e3)}),
        ),
        "model": st.sampled_from(
            [
                "mlp",
                {"type": "softmax", "features": {"type": "unit-ball", "radius": 2}},
                {"type": "cnn", "channels": [2]},
            ]
        ),
        "server": st.fixed_dictionaries({"clip_norm": SCHEDULES, "noise_std": SCHEDULES}),
        "attack": st.one_of(
            st.just("none"),
            st.fixed_dictionaries(
                {"type": st.just("model-replacement")},
                optional={
                    "scale": st.one_of(st.just("replace"), st.floats(1, 1e6)),
                    "clients": st.one_of(st.integers(1, 9), st.lists(st.integers(0, 19), max_size=3)),
                    "rounds": st.one_of(st.lists(st.integers(1, 4)), st.just({"first": 1, "every": 2})),
                },
            ),
        ),
        "threat": st.fixed_dictionaries({}, optional={"clients": st.integers(0, 5), "delta": st.floats(0, 1e300)}),
        "evaluation": st.fixed_dictionaries({}, optional={"radii": st.lists(st.floats(0, 10), max_size=3)}),
        "trackers": st.lists(
            st.sampled_from(["progress", {"type": "jsonl", "path": 'quoted "name" \\ é'}]), max_size=2
        ),
    },
)


@settings(max_examples=40, deadline=None)
@given(tree=CONFIGS)
def test_a_saved_config_reloads_to_an_equal_object(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    config = load_config(tree, registry=REGISTRY).config
    saved = tmp_path_factory.mktemp("config") / "config.toml"
    saved.write_text(dump_config(config), encoding="utf-8")
    loaded = load_config(saved, registry=REGISTRY).config
    assert loaded == config
    assert dump_config(loaded) == dump_config(config)


def test_seeds_of_single_purposes_change_their_stream_alone() -> None:
    from crfl_core.training.federation import streams_of

    plain = streams_of(load_config(overrides=["seed=3"]).config)
    changed = streams_of(load_config(overrides=["seed=3", "seeds.noise=4"]).config)
    other = streams_of(load_config(overrides=["seed=4"]).config)

    def draw(streams: Any, purpose: str) -> float:
        return float(streams.generator(purpose, round_number=1).random())

    assert draw(plain, "noise") != draw(changed, "noise")
    assert draw(changed, "noise") == draw(other, "noise")
    assert draw(plain, "votes") == draw(changed, "votes")
