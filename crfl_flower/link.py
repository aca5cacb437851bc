"""The one place that knows Flower from inside: how a server gets its grid, and how a node gets its tasks.

Flower would start a process for every message and load into it the code that the server sent. Here both apps run in
processes of ours, which claim their tasks themselves: a node runs no code but what is installed there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, NamedTuple

import httpx
from flwr.app import Array, Context, Message
from flwr.app.error import Error
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
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
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from crfl_core.extend import RunError

CLAIMED = "/flwr.proto.Runtime/AcquireTask"
LAST = 20.0
"""Seconds from the last answer of a SuperNode to its end."""
AWAY = (502, 503, 504)
"""What a server answers that may be back soon."""
UNREACHABLE = 60.0
"""Seconds after which a server whose SuperLink does not answer gives up; the run can be resumed."""
ARRIVING = 20.0
"""Seconds in which a message that a SuperNode announced must be whole."""
OBJECTS = 4096
"""No reply of ours has as many parts; Flower cuts arrays into pieces of 5 MB."""
APP = b"""[project]
name = "crfl-federation"
version = "1.0.0"
description = "Rounds of crfl serve. Its nodes run crfl join, which loads nothing of this bundle."
dependencies = ["crfl[flower]"]

[tool.flwr.app]
publisher = "crfl"

[tool.flwr.app.components]
serverapp = "crfl_flower.server_app:app"
clientapp = "crfl_flower.client_app:app"
"""


class TooLarge(Exception):
    """A reply has more bytes than it may have. The rest of it was not read."""


class Address(NamedTuple):
    """Where Flower listens: `host:port`, the certificate of its authority if it uses TLS, and who may claim tasks."""

    server: str
    authority: bytes | None
    secret: bytes

    def client(self, interceptor: ProtobufClientInterceptor, *, retried: bool = True) -> RuntimeHttpClient:
        """A client of the part for apps."""
        return RuntimeHttpClient.from_server_address(
            server_address=self.server,
            insecure=self.authority is None,
            root_certificates=self.authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
            retry_invoker=make_simple_http_retry_invoker() if retried else None,
        )

    def claiming(self) -> RuntimeHttpClient:
        """A client that may claim tasks."""
        signing = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={CLAIMED})
        return self.client(signing, retried=False)

    def grid(self, token: str) -> BoundedGrid:
        """The grid of a claimed server app."""
        insecure = self.authority is None
        return BoundedGrid(self.server, insecure=insecure, root_certificates=self.authority, token=token)


class BoundedGrid(HttpGrid):
    """A grid that reads no more of a reply than it is allowed to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arriving: dict[str, tuple[str, ObjectTree]] = {}

    @property
    def token(self) -> str:
        """What the task of this grid was claimed with."""
        return self._token

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """The reply to a message; None if it is not there yet, or not whole. Raises `TooLarge`, whatever it says."""
        client = self._runtime_client
        with at_most(client, limit):
            if message_id not in self._arriving:  # Flower hands a reply out once
                found = client.PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
                if not found.messages_list:
                    return None
                self._arriving[message_id] = found.messages_list[0].metadata.message_id, found.message_object_trees[0]
            reply, tree = self._arriving[message_id]
            contents = self._contents(client, tree, limit)
        if contents is None:
            return None
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=reply)
        )
        del self._arriving[message_id]
        message = inflate_object_from_contents(reply, contents)
        if not isinstance(message, Message):
            raise TypeError(f"a {type(message).__name__} instead of a message")
        return message

    def _contents(self, client: RuntimeHttpClient, tree: ObjectTree, limit: int) -> dict[str, bytes] | None:
        contents: dict[str, bytes] = {}
        for one in iterate_object_tree(tree):
            request = PullObjectRequest(node=self.node, run_id=self.run.run_id, object_id=one.object_id)
            answer = client.PullObject(request)
            if not (answer.object_found and answer.object_available):
                return None
            contents[one.object_id] = answer.object_content
            if len(contents) > OBJECTS or sum(map(len, contents.values())) > limit:
                raise TooLarge
        if sum(unfolded(content, contents) for content in contents.values()) > limit:
            raise TooLarge
        return contents


def bounded(grid: HttpGrid) -> BoundedGrid:
    """The same grid, with replies of bounded size."""
    other = BoundedGrid(grid._addr, insecure=grid._insecure, root_certificates=grid._cert, token=grid._token)
    other.set_run(grid.run)
    return other


def unfolded(content: bytes, others: Mapping[str, bytes]) -> int:
    """How long an array becomes: it may name the same piece many times, so that little is sent for much."""
    if get_object_type_from_object_content(content) != Array.__qualname__:
        return 0
    pieces = get_object_children_ids_from_object_content(content)
    places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(others[pieces[place]]) for place in places)


@contextmanager
def at_most(client: RuntimeHttpClient, limit: int) -> Iterator[None]:
    """Read no answer that says it has more bytes than this."""

    def check(response: httpx.Response) -> None:
        if int(response.headers.get("content-length", 0)) > limit:
            raise TooLarge

    hooks = client._client.event_hooks
    client._client.event_hooks = {"response": [check]}
    try:
        yield
    finally:
        client._client.event_hooks = hooks


def register_nodes(address: Address, keys: Iterable[bytes]) -> None:
    """Let these public keys in, and tell Flower of those that it does not know yet."""
    with control(address) as client:
        known = {node.public_key for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for key in keys:
            if key not in known:
                client.RegisterNode(RegisterNodeRequest(public_key=key))


@contextmanager
def control(address: Address) -> Iterator[ControlHttpClient]:
    """A client of the part for people who start runs."""
    client = ControlHttpClient.from_server_address(
        server_address=address.server,
        insecure=address.authority is None,
        root_certificates=address.authority,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def server_task(address: Address, seconds: float = 30.0) -> Iterator[tuple[BoundedGrid, Context]]:
    """A new run of Flower, claimed by this process, with the grid that reaches its nodes."""
    bundle, _ = build_fab_from_files({"pyproject.toml": APP})
    with control(address) as client:
        started = client.StartRun(StartRunRequest(fab=fab_to_proto(Fab(sha256(bundle).hexdigest(), bundle, {}))))
    grid = address.grid(claimed(address, TaskType.SERVER_APP, started.run_id, seconds))
    grid._retry_invoker.max_time, grid._retry_invoker.should_giveup = UNREACHABLE, gives_up
    runtime = grid._runtime_client
    heartbeat = HeartbeatSender(beating(address.client(RuntimeTokenHttpInterceptor(grid.token), retried=False)))
    heartbeat.start()
    status, details = SubStatus.FAILED, "the server ended early"
    try:
        given = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        yield grid, context_from_proto(given.context)
        status, details = SubStatus.COMPLETED, ""
    finally:
        heartbeat.stop()  # before the task is over: then its token is worth nothing any more
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError):  # Flower notices by itself that nobody is here any more
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        grid.close()


def beating(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Tells Flower that we are still here; whatever comes in between, it is tried again."""

    def beat() -> bool:
        try:
            return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except (httpx.HTTPError, RuntimeError):
            return False

    return beat


def gives_up(error: Exception) -> bool:
    """Whether a request is not tried again. Flower would end the process if its token is refused; we say so."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in AWAY


def claimed(address: Address, kind: TaskType, run: int, seconds: float) -> str:
    """The token of the task of a run; tasks that earlier processes left behind are claimed and dropped."""
    until, client = time.monotonic() + seconds, address.claiming()
    try:
        while time.monotonic() < until:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
            if found.token and found.task.run_id == run:
                return found.token
            time.sleep(0.1)
    finally:
        client.close()
    raise RunError(f"Flower at {address.server} has not handed out the run it was asked for within {seconds:g} s")


App = Callable[[Message, Context], Message]
"""What a client app is: a message and the context of the node in, a reply out."""


def answer_tasks(address: Address, app: App, ended: Callable[[], bool], pause: float = 0.2) -> None:
    """Answer every message that a node gets, one after the other, until it has `ended`."""
    client = address.claiming()
    try:
        while not ended():
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if found.token:
                answer_task(address, found.token, app)
            else:
                time.sleep(pause)
    except httpx.TransportError as error:  # it is about to end, or it hangs
        until = time.monotonic() + LAST
        while not ended():
            if time.monotonic() > until:
                raise RunError(f"Flower's SuperNode at {address.server} does not answer any more: {error}") from error
            time.sleep(pause)
    finally:
        client.close()


def answer_task(address: Address, token: str, app: App) -> None:
    """Answer one message; if the app raises, by an error that says no more than its class."""
    client = address.client(RuntimeTokenHttpInterceptor(token), retried=False)
    heartbeat = HeartbeatSender(beating(client))
    heartbeat.start()
    try:
        message, context = task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = app(message, context)
        except Exception as error:  # whatever it is, the server gets an answer, and nothing about the data
            status, details = SubStatus.FAILED, type(error).__name__
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message)
        push_message(client, reply, context)
        heartbeat.stop()
        push_task_output(client, context, status, details)
    except (httpx.HTTPStatusError, LookupError, ObjectPullError, RunNotRunningException):
        # The server that sent it is gone, and the rest of the message with it.
        push_task_output(client, None, SubStatus.FAILED, "the message is not there any more")
    finally:
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def task_input(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """The message that a task is about; what is missing of it may still come for some seconds."""
    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    tree = client.PullMessages(PullAppMessagesRequest()).message_object_trees[0]
    node = NodeNumber(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        max_time=ARRIVING,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context
