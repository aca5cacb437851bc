"""Connection to a Ray cluster: one that runs already, or one that is started for a run and ends with it."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from crfl_core.extend import OptionError, PluginError, RunError

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else every worker of a `uv run` builds an environment of its own
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it warns of is about GPUs
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}
HOST_AND_PORT = re.compile(r"(?P<host>[^\s:/]+):(?P<port>\d{1,5})")
SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS_FRAME
"""Begin of an HTTP/2 connection on both sides (RFC 9113, section 3.4); a server's first frame has the same type."""
PROBE_SECONDS = 2.0
"""Seconds that a cluster may take to accept a connection."""
ANSWER_SECONDS = 10.0
"""Seconds that a machine may take to answer at all."""


class ClusterRequest(NamedTuple):
    """Wanted cluster; `processors` and `store_mib` count if it is started here."""

    address: str
    processors: int
    store_mib: int


def import_ray() -> Any:
    """Import `ray`, and silence it. Raises `PluginError` if it is not installed."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise PluginError('Ray is not here: `pip install "crfl[ray]"`') from error
    return ray


class Connection:
    """Connection of this process to a cluster, shared by all its users, as Ray demands.

    The last user ends what was started here: the connection, and the cluster if it was started for it. A cluster that
    ran before stays.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._is_own = False
        self._printed: Any = None
        self.address = ""
        """Address of the cluster's control store, `host:port`, while this process is connected."""

    def acquire(self, request: ClusterRequest) -> None:
        """Connect, unless this process is connected.

        Raises `OptionError` if the cluster does not exist.
        """
        ray = import_ray()
        with self._lock:
            if ray.is_initialized():
                check_same(ray, request.address)
            else:
                with preserve_process_state():
                    connect(ray, request)
                self._is_own = True
                self._printed = replace_printer(ray, print_nothing)
            self._users += 1
            self.address = str(ray.get_runtime_context().gcs_address)

    def release(self) -> None:
        """Disconnect after the last user."""
        ray = import_ray()
        with self._lock:
            self._users -= 1
            if not self._users and self._is_own:
                self._is_own = False
                with preserve_process_state():
                    ray.shutdown()
                replace_printer(ray, self._printed)


CONNECTION = Connection()


def connect(ray: Any, request: ClusterRequest) -> None:
    """Join the requested cluster, or start one."""
    if request.address == "local":
        start(ray, request)
    elif request.address == "auto":
        try:
            join(ray, "auto")
        except ConnectionError as error:
            if place := os.environ.get("RAY_ADDRESS"):
                raise OptionError("address", f"no Ray answers at {place}, which RAY_ADDRESS names: {error}") from error
            start(ray, request)
    else:
        check_answers(request.address)
        try:
            join(ray, request.address)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise OptionError(
                "address",
                f"there is no Ray cluster at {request.address} that this machine belongs to ({reason}): run `ray start "
                f"--address={request.address}` here first",
            ) from error


def start(ray: Any, request: ClusterRequest) -> None:
    """Start a cluster of this machine alone, with little shared memory."""
    try:
        ray.init(
            address="local",
            num_cpus=request.processors,
            num_gpus=0,
            object_store_memory=request.store_mib * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:  # Ray gives its processes half a minute, and raises what has no name
        ray.shutdown()
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"Ray did not start on this machine ({reason}): try again when it is less busy") from error


def join(ray: Any, address: str) -> None:
    """Become a driver of a cluster that runs."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")


def check_answers(address: str) -> None:
    """Raise `OptionError` unless a Ray cluster answers at this address.

    Ray itself waits for minutes for a machine that does not answer, or does not speak HTTP/2.
    """
    found = HOST_AND_PORT.fullmatch(address)
    assert found is not None
    try:
        with socket.create_connection((found["host"], int(found["port"])), ANSWER_SECONDS) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(len(SETTINGS_FRAME))
    except (OSError, OverflowError) as error:
        raise OptionError(
            "address", f"no server answers at {address} ({error}): start Ray there with `ray start --head`"
        ) from error
    if answer[3:4] != SETTINGS_FRAME[3:4]:
        raise OptionError("address", f"the server at {address} is not Ray: give the port of `ray start --head`")


def gone_message(address: str) -> str:
    """Return the message about a cluster that does not answer."""
    return f"the control store of the Ray cluster at {address} does not answer any more: start the cluster again"


def is_reachable(address: str) -> bool:
    """Return whether a process listens at an address, `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def check_same(ray: Any, address: str) -> None:
    """Raise `OptionError` if this process uses another cluster.

    A process has one cluster at a time.
    """
    here = str(ray.get_runtime_context().gcs_address)
    found = HOST_AND_PORT.fullmatch(address)
    if found is not None and socket.gethostbyname(found["host"]) + ":" + found["port"] != here:
        raise OptionError("address", f"this process already works with the Ray cluster at {here}, not {address}")


def replace_printer(ray: Any, instead: Any) -> Any:
    """Replace the function that prints dead nodes.

    Ray prints them on standard output, among the results, and has no setting for that. Returns what was there.
    """
    module = ray._private.worker
    before = getattr(module, "print_to_stdstream", None)
    if before is not None and instead is not None:
        module.print_to_stdstream = instead
    return before


def print_nothing(*_: object, **__: object) -> None:
    """Print nothing: the caller reports a lost worker."""


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the SIGTERM handler and the random state after Ray.

    The handler saves a run.
    """
    state = random.getstate()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        random.setstate(state)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def available_processors() -> int:
    """Count the processes that can run at once on this machine."""
    return len(os.sched_getaffinity(0))
