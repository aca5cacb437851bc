"""A plain Flower app, run by Flower itself, with our strategy in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from crfl_flower.processes import find_free_port

from crfl_core import load
from tests.flower import plain_app
from tests.flower.conftest import processes_of
from tests.flower.processes import LONG, wait_until
from tests.flower.test_strategy import config

PROJECT = """
[project]
name = "plain-app"
version = "1.0.0"
description = "clients in NumPy"
dependencies = []

[tool.flwr.app]
publisher = "example"

[tool.flwr.app.components]
serverapp = "plain.server:app"
clientapp = "plain.client:app"

[tool.flwr.app.config]
config = ""
out = ""
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from crfl_flower.strategy import CrflStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = CrflStrategy(context.run_config["config"], out=context.run_config["out"], fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros((10, 64), np.float32)]), num_rounds=2)
"""


@pytest.mark.usefixtures("nothing_left")
def test_an_app_of_flower_gets_a_certificate(tmp_path: Path) -> None:
    app, home, out, port = tmp_path / "app", tmp_path / "flwr", tmp_path / "run", find_free_port()
    (app / "plain").mkdir(parents=True)
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (app / "plain" / "__init__.py").touch()
    (app / "plain" / "server.py").write_text(SERVER, encoding="utf-8")
    shutil.copy(str(plain_app.__file__), app / "plain" / "client.py")
    (home / "config.toml").write_text(f'[superlink.t]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    options = ["--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    with ExitStack() as stack:
        stack.enter_context(
            running(["flower-superlink", *options, "--database", str(tmp_path / "db")], tmp_path / "superlink.log")
        )
        for client in range(plain_app.CLIENTS):
            node = f'partition-id={client} folder="{tmp_path}"'
            where = ["--superlink", f"127.0.0.1:{port}", "--port", str(find_free_port()), "--node-config", node]
            stack.enter_context(running(["flower-supernode", "--insecure", *where], tmp_path / f"node-{client}.log"))
        settings = f'config="{config(tmp_path)}" out="{out}"'
        wait_until(lambda: "Uvicorn running" in (tmp_path / "superlink.log").read_text(), "the superlink")
        started = flwr("run", str(app), "t", "--run-config", settings, "--format", "json")
        run = str(json.loads(started)["run-id"])
        wait_until(lambda: ended(flwr("list", "t", "--run-id", run, "--format", "json")), "the run")
        said = (tmp_path / "superlink.log").read_text()
        assert (out / "certificates" / "pathwise-linear.csv").exists(), said[-3000:]
    found = load(out)
    assert not found.metrics.refused
    assert not found.ledger.clients.quarantined.any()
    wait_until(lambda: not processes_of(Path(f"127.0.0.1:{port}")), "the end of all that Flower started", 30.0)


def ended(listed: str) -> bool:
    """Whether the only run of a list is over, one way or the other."""
    (run,) = json.loads(listed)["runs"]
    return str(run["status"]).startswith("finished")


def surroundings() -> dict[str, str]:
    """Where processes of Flower find each other's commands, in whatever environment the tests run."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return os.environ | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "PATH": places}


def flwr(*words: str) -> str:
    """A command of Flower; what it printed."""
    command = [str(Path(sys.executable).with_name("flwr")), *words]
    done = subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """A process of Flower, until the block is over."""
    name, *options = command
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(name)), *options],
            stdout=stream, stderr=stream, env=surroundings(), start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
