"""A real federation on loopback: TLS, registered keys, nodes in processes of their own, a server that is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from crfl_flower.keys import write_authority, write_node_key
from crfl_flower.processes import find_free_port
from typer.testing import CliRunner

import crfl_core
from crfl_core.cli.app import app
from tests.flower.conftest import processes_of
from tests.flower.processes import commands, wait_until
from tests.flower.support import experiment, founded
from tests.flower.test_same_bits import same

ROUNDS = 6


@pytest.mark.usefixtures("nothing_left")
def test_a_federation_survives_its_server_and_ends_as_one_process_would(tmp_path: Path) -> None:
    config = experiment(tmp_path / "e", rounds=ROUNDS, storage={"figures": [], "checkpoint_seconds": 0})
    fed, out = tmp_path / "fed", tmp_path / "run"
    server = founded(fed, config, f"127.0.0.1:{find_free_port()}")
    stranger, deceived = strangers(fed)
    with commands(tmp_path) as start:
        serving = start("serve", "federation", "serve", str(server), "--out", str(out))
        wait_until(lambda: "waiting for 4 nodes" in serving.said or serving.process.poll(), serving.said)
        refused = start("stranger", "federation", "join", str(stranger))
        deceived_one = start("deceived", "federation", "join", str(deceived))
        wait_until(lambda: "trying again in 2 s" in refused.said, "two refusals of a stranger")
        assert "does not know the key of this node: copy its .pub file" in refused.said
        assert refused.process.poll() is None
        assert deceived_one.ended() == 2
        assert "does not vouch for" in deceived_one.said
        joined = [
            start(f"join-{client}", "federation", "join", str(fed / f"node-{client}" / "node.toml"))
            for client in range(4)
        ]
        wait_until(lambda: rounds_in(out) >= 2 or serving.process.poll() is not None, "two rounds")
        serving.kill()
        wait_until(lambda: not beneath(fed / "server"), "the end of what ran beneath the server")
        played = rounds_in(out)
        assert 2 <= played < ROUNDS, serving.said
        wait_until(lambda: "cannot be reached; trying again" in joined[0].said, "a node that misses its server")
        again = start("serve-again", "federation", "serve", str(server), "--out", str(out))
        assert again.ended() == 0, again.said
        assert "registered" not in again.said
    local = crfl_core.run(config, out=tmp_path / "local")
    assert same(local.path, out) == []
    ask(out)


def strangers(fed: Path) -> tuple[Path, Path]:
    """The file of a node whose key is not registered, and that of one which trusts another authority."""
    unknown, deceived = fed / "stranger", fed / "deceived"
    for folder in (unknown, deceived):
        shutil.copytree(fed / "node-0", folder)
    (unknown / "node.key").unlink()
    write_node_key(unknown / "node.key", unknown / "node.pub")
    other = fed / "other"
    other.mkdir()
    write_authority(other, ["127.0.0.1"])
    shutil.copy(other / "ca.crt", deceived / "ca.crt")
    return unknown / "node.toml", deceived / "node.toml"


def rounds_in(out: Path) -> int:
    """How many rounds a run has written down."""
    try:
        return len((out / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    except OSError:
        return 0


def beneath(folder: Path) -> list[str]:
    """The processes of Flower that a server started."""
    return [command for command in processes_of(folder) if "crfl_flower.superlink" in command]


def ask(out: Path) -> None:
    """Everything that is asked of a run can be asked of a federated one."""
    page = ["open", "--no-browser", "--explore", "0"]
    for words in (["certify", "--set", "threat.clients=2"], ["show"], page, ["verify"]):
        name, *options = words
        done = CliRunner().invoke(app, [name, str(out), *options])
        assert done.exit_code == 0, (words, done.output)
