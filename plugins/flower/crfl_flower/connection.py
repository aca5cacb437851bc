"""Connections to Flower: the server's grid, and the tasks of a node.

Flower would start one process per message and load code that the server sent. Here, both apps run in processes that
claim their tasks themselves, so a node runs only code that is installed on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import NamedTuple

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.node_pb2 import Node as NodeNumber
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from crfl_core.errors import RunError
from crfl_flower.bounded_grid import BoundedGrid
from crfl_flower.messages import OVERHEAD_BYTES
from crfl_flower.request_gate import REPLY_BYTES_HEADER, SECRET_HEADER

ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
SUPERNODE_SECONDS = 20.0
"""Seconds from the last answer of a SuperNode until its process must have ended."""
RETRIED_STATUSES = (502, 503, 504)
"""HTTP statuses of a server that may be back soon."""
SUPERLINK_SECONDS = 60.0
"""Seconds without an answer of the SuperLink after which the server gives up; the run can be resumed."""
MESSAGE_SECONDS = 20.0
"""Seconds within which a message that the SuperNode announced must be complete."""
APP_BUNDLE = b"""[project]
name = "crfl-federation"
version = "1.0.0"
description = "Rounds of crfl federation serve. Its nodes load nothing of this bundle."
dependencies = ["crfl[flower]"]

[tool.flwr.app]
publisher = "crfl"

[tool.flwr.app.components]
serverapp = "crfl_flower.server_app:app"
clientapp = "crfl_flower.client_app:app"
"""


class ShowSecret:
    """Interceptor that shows the gate of the SuperLink the secret of the server."""

    def __init__(self, secret: bytes, reply_bytes: int | None = None) -> None:
        self._headers = {SECRET_HEADER: secret.hex()}
        if reply_bytes is not None:
            self._headers[REPLY_BYTES_HEADER] = str(reply_bytes)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the headers of the gate to a request."""
        add_headers(context.request, dict(self._headers))
        return call_next(context)


class Address(NamedTuple):
    """Address of a Flower service: `host:port`, its certificate authority, and the secret that claims tasks.

    `authority` is None for a connection without TLS.
    """

    server: str
    authority: bytes | None
    secret: bytes

    def connect(self, interceptor: ProtobufClientInterceptor, *, retried: bool = True) -> RuntimeHttpClient:
        """Return a client of Flower's runtime API."""
        shown = [] if self.authority is None else [ShowSecret(self.secret)]  # a SuperNode has no gate
        return RuntimeHttpClient.from_server_address(
            server_address=self.server,
            insecure=self.authority is None,
            root_certificates=self.authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor, *shown],
            retry_invoker=make_simple_http_retry_invoker() if retried else None,
        )

    def connect_claimer(self) -> RuntimeHttpClient:
        """Return a client that may claim tasks."""
        signing = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={ACQUIRE_TASK})
        return self.connect(signing, retried=False)

    def open_grid(self, token: str) -> BoundedGrid:
        """Return the grid of a claimed server task."""
        insecure = self.authority is None
        return BoundedGrid(
            self.server, insecure=insecure, root_certificates=self.authority, token=token, secret=self.secret
        )


def register_nodes(address: Address, keys: Iterable[bytes | None]) -> list[int | None]:
    """Register public keys with Flower and return the nodes' numbers.

    The number is None for a client without a key.
    """
    with open_control(address) as client:
        return [
            None if key is None else client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id for key in keys
        ]


@contextmanager
def open_control(address: Address, reply_bytes: int | None = None) -> Iterator[ControlHttpClient]:
    """Open a client of Flower's control API for the block.

    With `reply_bytes`, its requests let nodes in.
    """
    client = ControlHttpClient.from_server_address(
        server_address=address.server,
        insecure=address.authority is None,
        root_certificates=address.authority,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            ShowSecret(address.secret, reply_bytes),
        ],
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def run_server_task(address: Address, seconds: float = 30.0) -> Iterator[tuple[BoundedGrid, Context]]:
    """Start a new run of Flower and claim its server task.

    Yield the grid and the context of the task.
    """
    bundle, _ = build_fab_from_files({"pyproject.toml": APP_BUNDLE})
    with open_control(address, OVERHEAD_BYTES) as client:
        started = client.StartRun(StartRunRequest(fab=fab_to_proto(Fab(sha256(bundle).hexdigest(), bundle, {}))))
    grid = address.open_grid(claim_task(address, TaskType.SERVER_APP, started.run_id, seconds))
    grid._retry_invoker.max_time = SUPERLINK_SECONDS
    grid._retry_invoker.should_giveup = is_final_error
    runtime = grid._runtime_client
    heartbeat = HeartbeatSender(
        heartbeat_function(address.connect(RuntimeTokenHttpInterceptor(grid.token), retried=False))
    )
    heartbeat.start()
    status = SubStatus.FAILED
    details = "the server ended early"
    try:
        given = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        yield grid, context_from_proto(given.context)
        status = SubStatus.COMPLETED
        details = ""
    finally:
        heartbeat.stop()  # while the token of the task is still valid
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError):  # Flower detects the missing heartbeat by itself
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        grid.close()


def heartbeat_function(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Return a function that sends one heartbeat.

    The sender retries after a failure.
    """

    def beat() -> bool:
        try:
            return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except (httpx.HTTPError, RuntimeError):
            return False

    return beat


def is_final_error(error: Exception) -> bool:
    """Return whether a failed request must not be retried.

    Flower would end the process if its token is refused; raising lets the caller report it.
    """
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in RETRIED_STATUSES


def claim_task(address: Address, kind: TaskType, run: int, seconds: float) -> str:
    """Return the token of the task of a run.

    Tasks that earlier processes left behind are claimed and dropped. Raises `RunError` if Flower does not hand out the
    task within `seconds`.
    """
    until = time.monotonic() + seconds
    client = address.connect_claimer()
    try:
        while time.monotonic() < until:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
            if found.token and found.task.run_id == run:
                return found.token
            time.sleep(0.1)
    finally:
        client.close()
    raise RunError(f"Flower at {address.server} did not hand out the requested run within {seconds:g} s")


ClientFunction = Callable[[Message, Context], Message]
"""A client app as a function: takes a message and the context of the node, returns the reply."""


def answer_tasks(address: Address, app: ClientFunction, ended: Callable[[], bool], pause: float = 0.2) -> None:
    """Answer the messages that the node receives until `ended()` is true.

    The node answers in order.
    """
    client = address.connect_claimer()
    try:
        while not ended():
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if found.token:
                answer_task(address, found.token, app)
            else:
                time.sleep(pause)
    except httpx.TransportError as error:  # the SuperNode is about to end, or it hangs
        until = time.monotonic() + SUPERNODE_SECONDS
        while not ended():
            if time.monotonic() > until:
                raise RunError(f"Flower's SuperNode at {address.server} stopped answering: {error}") from error
            time.sleep(pause)
    finally:
        client.close()


def answer_task(address: Address, token: str, app: ClientFunction) -> None:
    """Answer one message with the app.

    If the app raises, answer with an error that names only its class.
    """
    client = address.connect(RuntimeTokenHttpInterceptor(token), retried=False)
    heartbeat = HeartbeatSender(heartbeat_function(client))
    heartbeat.start()
    try:
        message, context = pull_task_input(client)
        status = SubStatus.COMPLETED
        details = ""
        try:
            reply = app(message, context)
        except Exception as error:  # the server gets an answer that reveals nothing about the data
            status = SubStatus.FAILED
            details = type(error).__name__
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message)
        push_message(client, reply, context)
        heartbeat.stop()
        push_task_output(client, context, status, details)
    except (httpx.HTTPStatusError, LookupError, ObjectPullError, RunNotRunningException):
        # The server that sent the message is gone.
        push_task_output(client, None, SubStatus.FAILED, "the message is no longer available")
    finally:
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def pull_task_input(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """Return the message and the context of a task.

    Wait a few seconds for missing parts.
    """
    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    tree = client.PullMessages(PullAppMessagesRequest()).message_object_trees[0]
    node = NodeNumber(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        max_time=MESSAGE_SECONDS,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context
