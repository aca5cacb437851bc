"""Discovery: entry points of real distributions, each read and imported in isolation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_datasets.digits import Digits

import crfl_core
from crfl_core import dump_config, load_config
from crfl_core.extend import ConfigError, PluginError, Registry, Tracker
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_loading.registry import PluginListing

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

QUIET = '''
from crfl_core.extend import Tracker

class Quiet(Tracker):
    """Watches and says nothing."""

    level: int = 1
'''


def listed(name: str) -> list[PluginListing]:
    """Every line of the listing under a name."""
    return [line for line in Registry().listing() if line.name == name]


def test_every_kind_has_a_group_of_its_own() -> None:
    groups = [kind.group for kind in KINDS.values()]
    assert len(set(groups)) == len(groups)
    assert all(group.startswith("crfl.") for group in groups)


@pytest.mark.parametrize("kind", KINDS)
def test_built_in_plugins_are_found_as_those_of_a_distribution(kind: str) -> None:
    lines = [line for line in Registry().listing() if (line.kind, line.distribution) == (kind, "crfl")]
    assert lines
    for line in lines:
        assert (line.version, line.status, line.reason) == (crfl_core.__version__, "ok", "")
        assert line.summary


def test_an_installed_plugin_is_found_and_listed_with_its_hooks(install: Install) -> None:
    hooked = QUIET.replace("import Tracker", "import Tracker, hookimpl")
    hooked += "    @hookimpl\n    def crfl_run_finished(self): pass\n"
    install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, hooked)
    assert listed("quiet") == [
        PluginListing(
            kind="tracker",
            name="quiet",
            distribution="robust-tools",
            version="1.2",
            status="ok",
            reason="",
            summary="Watches and says nothing.",
            hooks=("crfl_run_finished",),
        )
    ]


def test_names_are_known_without_importing_anything(install: Install) -> None:
    install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET)
    assert "quiet" in Registry().names("tracker")
    assert "robust_tools" not in sys.modules


def test_only_the_named_plugin_is_imported(install: Install) -> None:
    install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET)
    install("other-tools", "3.4", {"crfl.trackers": {"loud": "Quiet"}}, QUIET)
    (tracker,) = load_config({"trackers": [{"type": "quiet", "level": 2}]}).config.trackers
    assert tracker.configured_as == "quiet"
    assert tracker.model_dump() == {"level": 2}
    assert "robust_tools" in sys.modules
    assert "other_tools" not in sys.modules


BROKEN = {
    "raises on import": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "has a syntax error": ("def (", "SyntaxError"),
    "exits on import": (
        "raise SystemExit('bye')",
        "cannot be imported: SystemExit: bye: a plugin must not end the process",
    ),
    "lacks the class": ("", "AttributeError: module 'broken_tools' has no attribute 'Broken'"),
    "is no class": ("Broken = 3", "is 3, not a subclass of crfl_core.extend.Tracker"),
    "is of another kind": (
        "from crfl_core.extend import Aggregator as Broken",
        "not a subclass of crfl_core.extend.Tracker",
    ),
    "needs a newer crfl": (
        "from crfl_core.extend import Tracker\nfrom typing import ClassVar\n"
        "class Broken(Tracker):\n    api_version: ClassVar[int] = 99\n",
        "needs plugin API 99, this crfl offers 1: upgrade crfl",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_and_matters_only_when_a_config_names_it(
    install: Install, source: str, reason: str
) -> None:
    install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, source)
    registry = Registry()
    (line,) = [line for line in registry.listing() if line.status != "ok"]
    assert (line.name, line.status, line.distribution, line.version) == ("broken", "failed", "broken-tools", "0.3")
    assert reason in line.reason

    load_config(registry=registry)
    with pytest.raises(ConfigError) as stop:
        load_config({"trackers": ["broken"]}, registry=registry)
    assert "trackers.0.type = 'broken': tracker 'broken' of broken-tools 0.3" in str(stop.value)
    assert reason in str(stop.value)


def test_a_class_that_leaves_methods_out_is_refused(install: Install) -> None:
    source = "from crfl_core.extend import Aggregator\nclass Half(Aggregator): pass\n"
    install("broken-tools", "0.3", {"crfl.aggregators": {"half": "Half"}}, source)
    with pytest.raises(PluginError, match=r"aggregator 'half' of broken-tools 0\.3 does not implement aggregate"):
        Registry().load("aggregator", "half")


def test_ctrl_c_during_an_import_is_no_failure_of_the_plugin(install: Install) -> None:
    install("slow-tools", "1.0", {"crfl.trackers": {"slow": "Slow"}}, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Registry().load("tracker", "slow")


def test_broken_metadata_of_one_distribution_hide_no_other(install: Install, tmp_path: Path) -> None:
    install("garbled-tools", "7", {"crfl.trackers": {"garbled": "Garbled"}}, "")
    points = next(tmp_path.glob("site-packages/garbled_tools-7.dist-info")) / "entry_points.txt"
    points.write_text("[crfl.trackers]\nthis line has no equals sign\n")
    assert "jsonl" in Registry().names("tracker")
    (line,) = [line for line in Registry().listing() if line.status != "ok"]
    assert (line.distribution, line.version, line.status) == ("garbled-tools", "7", "failed")
    assert "its entry points cannot be read" in line.reason


def test_metadata_that_are_not_even_text_hide_no_other(install: Install, tmp_path: Path) -> None:
    install("garbled-tools", "7", {"crfl.trackers": {"garbled": "Garbled"}}, "")
    (next(tmp_path.glob("site-packages/garbled_tools-7.dist-info")) / "METADATA").write_bytes(b"Name: \xff")
    assert [line.distribution for line in Registry().listing() if line.status != "ok"] == ["unknown"]


def test_the_first_distribution_of_a_name_on_the_path_counts(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET)
    older = tmp_path / "older" / "robust_tools-1.1.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: Robust.Tools\nVersion: 1.1\n")
    (older / "entry_points.txt").write_text("[crfl.trackers]\nquiet = robust_tools:Quiet\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(older.parent)])
    assert [line.version for line in listed("quiet")] == ["1.2"]


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("aggregator", "fedagv", "did you mean 'fedavg'"),
        ("tracker", "zzz", "installed"),
        ("tracker", "unknown:jsonl", "did you mean 'jsonl'"),
        ("dataset", "fedavg", "'fedavg' is the name of another kind, aggregator;"),
    ],
)
def test_an_unknown_name_gets_the_closest_ones_and_what_is_installed(kind: str, name: str, hint: str) -> None:
    with pytest.raises(PluginError) as stop:
        Registry().load(kind, name)
    assert str(stop.value).startswith(f"there is no {kind} {name!r}: {hint}")
    assert str(stop.value).endswith(f" installed: {', '.join(Registry().names(kind))}")


class TestTwoDistributionsWithOneName:
    @pytest.fixture(autouse=True)
    def _two(self, install: Install) -> None:
        install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET)
        install("Other-Tools", "3.4", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET.replace("Watches", "Listens"))

    def test_both_are_listed_as_a_conflict(self) -> None:
        assert {(line.distribution, line.version, line.status, line.reason) for line in listed("quiet")} == {
            ("robust-tools", "1.2", "conflict", "write 'robust-tools:quiet' to choose this one"),
            ("Other-Tools", "3.4", "conflict", "write 'Other-Tools:quiet' to choose this one"),
        }

    def test_the_bare_name_is_an_error_that_lists_both(self) -> None:
        load_config()
        with pytest.raises(ConfigError) as stop:
            load_config({"trackers": ["quiet"]})
        assert "robust-tools 1.2" in str(stop.value)
        assert "Other-Tools 3.4" in str(stop.value)
        assert "to choose one" in str(stop.value)

    @pytest.mark.parametrize("name", ["robust-tools:quiet", "Robust_Tools:quiet"])
    def test_distribution_and_name_select_one(self, name: str) -> None:
        plugin = Registry().load("tracker", name)
        assert plugin.__module__ == "robust_tools"

    def test_a_saved_config_remembers_the_choice(self, tmp_path: Path) -> None:
        config = load_config({"trackers": ["robust-tools:quiet"]}).config
        saved = tmp_path / "saved.toml"
        saved.write_text(dump_config(config))
        assert load_config(saved).config == config

    def test_an_instance_is_saved_under_the_name_that_selects_it(self) -> None:
        plugin = Registry().load("tracker", "robust-tools:quiet")
        (tracker,) = load_config({"trackers": [plugin()]}).config.trackers
        assert tracker.configured_as == "robust-tools:quiet"


def test_what_a_plugin_prints_on_import_does_not_get_into_our_output(install: Install, crfl: Crfl) -> None:
    install("chatty-tools", "1.0", {"crfl.trackers": {"quiet": "Quiet"}}, "print('hello from afar')\n" + QUIET)
    result = crfl("plugins", "--json")
    assert "quiet" in [line["name"] for line in json.loads(result.stdout)]
    assert result.stderr == "hello from afar\n"


def test_a_default_that_its_own_plugin_refuses_is_named(install: Install) -> None:
    source = QUIET.replace("level: int = 1", "level: Annotated[int, Field(ge=3)] = 1")
    source = "from typing import Annotated\nfrom pydantic import Field\n" + source
    install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, source)
    with pytest.raises(ConfigError) as stop:
        load_config({"trackers": ["quiet"]})
    assert str(stop.value).endswith(
        "tracker 'quiet' of robust-tools 1.2: its default level = 1 is refused: "
        "Input should be greater than or equal to 3: mend the plugin"
    )


class Local(Tracker):
    """Lives in this test file."""


def test_python_code_adds_classes_under_names_of_its_own() -> None:
    registry = Registry({"mine": Local})
    assert registry.load("tracker", "mine") is Local
    assert "mine" not in registry.names("aggregator")
    (tracker,) = load_config({"trackers": ["mine"]}, registry=registry).config.trackers
    assert tracker.full_name == "'mine' of (this process)"


def test_a_class_of_this_process_goes_before_an_installed_one() -> None:
    assert Registry({"jsonl": Local}).load("tracker", "jsonl") is Local


def test_an_instance_in_a_config_gets_the_name_of_its_class() -> None:
    registry = Registry({"mine": Local})
    config = load_config({"dataset": Digits(split_seed=3), "trackers": [Local()]}, registry=registry).config
    assert config.dataset.configured_as == "digits"
    assert [tracker.configured_as for tracker in config.trackers] == ["mine"]


def test_an_instance_of_an_unregistered_class_is_an_error_that_says_what_to_do() -> None:
    message = r"Local is not a registered tracker: name it with plugins=\{'my-name': Local\}"
    with pytest.raises(ConfigError, match=message):
        load_config({"trackers": [Local()]})


class TestAllowing:
    """`plugins.allow` of a config says whose code may run, and it is asked before anything is imported."""

    @pytest.fixture(autouse=True)
    def _two(self, install: Install) -> None:
        install("robust-tools", "1.2", {"crfl.trackers": {"quiet": "Quiet"}}, QUIET)
        install("shady-tools", "6.6", {"crfl.trackers": {"shady": "Quiet", "quiet": "Quiet"}}, QUIET)

    def test_what_is_not_listed_is_never_imported(self) -> None:
        with pytest.raises(ConfigError) as stop:
            load_config({"plugins": {"allow": ["robust-tools"]}, "trackers": ["shady"]})
        assert str(stop.value) == (
            "the mapping given to crfl_core: trackers.0.type = 'shady': tracker 'shady' of shady-tools 6.6 is blocked "
            "by plugins.allow, which does not list it: if you trust it, add 'shady-tools' there"
        )
        assert "shady_tools" not in sys.modules

    @pytest.mark.parametrize("entry", ["shady-tools", "Shady_Tools", "shady-tools:shady"])
    def test_distributions_and_single_plugins_are_allowed(self, entry: str) -> None:
        (tracker,) = load_config({"plugins": {"allow": [entry]}, "trackers": ["shady"]}).config.trackers
        assert tracker.configured_as == "shady"

    def test_a_name_alone_allows_nothing_because_any_package_can_take_it(self) -> None:
        with pytest.raises(ConfigError, match=r"is blocked by plugins\.allow"):
            load_config({"plugins": {"allow": ["shady"]}, "trackers": ["shady"]})

    def test_allowing_one_settles_a_conflict_and_the_run_records_which(self, tmp_path: Path) -> None:
        config = {"plugins": {"allow": ["robust-tools"]}, "trackers": ["quiet"], "rounds": 1, "votes": {"models": 10}}
        result = crfl_core.run(config, out=tmp_path / "run")
        recorded = json.loads((result.path / "environment.json").read_text(encoding="utf-8"))["plugins"]
        (quiet,) = (plugin for plugin in recorded if plugin["name"] == "quiet")
        assert (quiet["kind"], quiet["distribution"], quiet["version"]) == ("tracker", "robust-tools", "1.2")
        assert "shady_tools" not in sys.modules

    def test_what_belongs_to_crfl_or_to_this_process_needs_no_permission(self) -> None:
        config = {"plugins": {"allow": []}, "trackers": ["jsonl", "mine"]}
        loaded = load_config(config, registry=Registry({"mine": Local}))
        assert [tracker.configured_as for tracker in loaded.config.trackers] == ["jsonl", "mine"]

    def test_the_list_is_inherited_like_any_array(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('plugins.allow = ["robust-tools"]\n')
        (tmp_path / "strict.toml").write_text('extends = "base.toml"\ntrackers = ["shady"]\n')
        (tmp_path / "wide.toml").write_text('extends = "strict.toml"\nplugins.allow = ["shady-tools"]\n')
        with pytest.raises(ConfigError, match=r"strict\.toml: trackers\.0\.type = 'shady': .* plugins\.allow"):
            load_config(tmp_path / "strict.toml")
        assert load_config(tmp_path / "wide.toml").config.plugins.allow == ("shady-tools",)
        with pytest.raises(ConfigError, match=r"is blocked by plugins\.allow"):
            load_config(tmp_path / "wide.toml", overrides=["plugins.allow=[]"])

    def test_a_list_that_cannot_be_understood_loads_nothing(self) -> None:
        with pytest.raises(ConfigError, match=r"plugins\.allow = 'shady-tools': must be a list"):
            load_config({"plugins": {"allow": "shady-tools"}, "trackers": ["shady"]})
        with pytest.raises(ConfigError, match=r"plugins\.alow.*did you mean 'allow'"):
            load_config({"plugins": {"alow": []}, "trackers": ["shady"]})
        assert "shady_tools" not in sys.modules

    def test_a_saved_config_keeps_it(self, tmp_path: Path) -> None:
        config = load_config({"plugins": {"allow": ["shady-tools:shady"]}, "trackers": ["shady"]}).config
        (tmp_path / "saved.toml").write_text(dump_config(config))
        assert load_config(tmp_path / "saved.toml").config == config
