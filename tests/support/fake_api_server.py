"""An API server as far as the agent talks to one: real HTTP over TLS, with objects, versions and watches.

It keeps the rules on which the agent depends: 409 for fields of another manager and for names that are taken,
404 for resources that no CustomResourceDefinition serves, 410 for versions that are not kept any more.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from bayplan.agent.cluster.api import TIMEOUT_S, Api, Reachability
from bayplan.agent.http_client import Server
from support.fake_kubelet import RECORDED, TOKEN
from support.http_server import Handler, serving
from support.slice_rules import complaints, without_lists

Object = dict[str, Any]

TOPOLOGY: Final = "/apis/topology.node.k8s.io"
PODS: Final = "/api/v1/pods"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
NODE: Final = "node-a"


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The answer to a request that is refused."""

    def __init__(self, status: int, message: str, *causes: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.causes = causes


class FakeApiServer:
    """``objects`` by path; ``requests`` are method and path of all that came. What a test sets: ``forbidden``
    (methods and beginnings of paths), ``crd_versions``, ``hangs``, ``busy``, ``starts`` (it is not ready),
    ``loses_answers`` (to writes of managed fields), ``late`` (by path what the next answer there waits for
    once it is made), ``takes_lists`` (`DRAListTypeAttributes`), and ``budgets``, names of pods that a
    PodDisruptionBudget keeps."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {
            f"/api/v1/nodes/{NODE}": {"kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}
        }
        self.requests: list[tuple[str, str]] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.crd_versions = ("v1alpha2",)
        self.hangs = False
        self.busy = False
        self.starts = False
        self.loses_answers = False
        self.late: dict[str, threading.Event] = {}
        self.takes_lists = False
        self.budgets: set[str] = set()
        self.changed = threading.Condition()
        self.port = 0
        self._managers: dict[str, str] = {}
        self._generations: dict[str, Object] = {}
        self._version = 100
        self._events: list[tuple[str, Object]] = []
        """The collections of what changed, and how."""
        self._oldest = 0
        self._stopping = False

    @property
    def server(self) -> Server:
        """How it is asked."""
        url = f"https://127.0.0.1:{self.port}"
        return Server(url, RECORDED / "kubelet.pem", "node", TOKEN.encode())

    def api(self, timeout_s: float = TIMEOUT_S) -> Api:
        """How the parts of an agent ask it; once it is away, three times in a second whether it is ready."""
        return Api(self.server, timeout_s, Reachability(self.server, again_s=0.3))

    def put_pod(self, pod: Object) -> None:
        """The pod comes, or is changed."""
        path = f"{PODS}/{pod['metadata']['uid']}"
        with self.changed:
            self._put(path, pod)

    def delete_pod(self, uid: str) -> None:
        """The pod goes."""
        self.delete(f"{PODS}/{uid}")

    def delete(self, path: str) -> None:
        """The object at *path* goes."""
        with self.changed:
            self._note("DELETED", path, self.objects.pop(path))

    def slices(self) -> list[Object]:
        """All ResourceSlices."""
        with self.changed:
            return self._listed(SLICES)

    def bookmark(self) -> None:
        """Tell all who watch the version of now."""
        with self.changed:
            self._note("BOOKMARK", f"{PODS}/", {"kind": "Pod", "metadata": {}})

    def forget_changes(self) -> None:
        """Whoever comes with an older version has to list again."""
        with self.changed:
            self._oldest = self._version
            self._events.clear()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve until the end, at the same port as before."""
        self._stopping = False
        with serving(_handler(self), port=self.port, certificates=RECORDED) as self.port:
            try:
                yield
            finally:
                with self.changed:
                    self._stopping = True
                    self.changed.notify_all()

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Object) -> Object:
        """The answer to a request; raises Refusal."""
        try:
            return self._answer(method, path, query, body)
        finally:
            if (told := self.late.pop(path, None)) is not None:
                told.wait(TIMEOUT_S)

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: Object) -> Object:
        with self.changed:
            self.requests.append((method, path))
            self.changed.wait_for(lambda: not self.hangs or self._stopping)
            if any(method == verb and path.startswith(start) for verb, start in self.forbidden):
                raise Refusal(HTTPStatus.FORBIDDEN, f'"{path}" is forbidden: User "agent" cannot {method}')
            self._check_served(path)
            if method == "GET" and path in {PODS, SLICES}:
                items = list(filter(_selected(query), self._listed(path)))
                return {"kind": "List", "metadata": self._metadata({}), "items": items}
            if self.busy:
                raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many requests, please try again later")
            if path.endswith("/eviction") and body["metadata"]["name"] in self.budgets:
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS, "Cannot evict pod: its budget", "DisruptionBudget"
                )
            if method == "POST":
                return self._create(f"{path}/{body['metadata']['name']}", body)
            if method == "PATCH" and "fieldManager" in query:
                return self._apply(path, query["fieldManager"][0], body)
            if path not in self.objects:
                raise Refusal(HTTPStatus.NOT_FOUND, f"{path} not found")
            if method == "PATCH":
                self.objects[path] |= body
            if method == "DELETE":
                self._note("DELETED", path, gone := self.objects.pop(path))
                return gone
            return self.objects[path]

    def _listed(self, collection: str) -> list[Object]:
        return [one for name, one in self.objects.items() if name.startswith(f"{collection}/")]

    def events_after(self, collection: str, version: int) -> Iterator[Object]:
        """The changes of *collection* after *version*, as they come."""
        if version < self._oldest:
            yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
            return
        while later := self._next_events(version):
            yield from (event for where, event in later if where == collection)
            version = int(_version_of(later[-1][1]))

    def _next_events(self, version: int) -> list[tuple[str, Object]]:
        """The changes after *version*, once there are any; none at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self._stopping or self._later_than(version))
            return [] if self._stopping else self._later_than(version)

    def _later_than(self, version: int) -> list[tuple[str, Object]]:
        return [one for one in self._events if int(_version_of(one[1])) > version]

    def _check_served(self, path: str) -> None:
        if path == "/readyz" and self.starts:
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "[-]poststarthook/rbac/bootstrap-roles")
        if path == TOPOLOGY and self.crd_versions:
            versions = [{"version": one} for one in self.crd_versions]
            self.objects[path] = {"kind": "APIGroup", "versions": versions}
        elif path.startswith(TOPOLOGY):
            self.objects.pop(TOPOLOGY, None)
            if not path.removeprefix(TOPOLOGY).startswith(tuple(f"/{one}/" for one in self.crd_versions)):
                raise Refusal(HTTPStatus.NOT_FOUND, "the server could not find the requested resource")

    def _apply(self, path: str, manager: str, applied: Object) -> Object:
        if path.endswith("/status"):
            return self._apply_status(path.removesuffix("/status"), applied)
        if path.startswith(f"{SLICES}/") and not self.takes_lists:
            applied = without_lists(applied)
        if path.startswith(f"{SLICES}/") and (wrong := complaints(applied)):
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(wrong))
        other = self._managers.get(path, manager)
        if other != manager and self.objects.get(path, {}).get("zones") != applied["zones"]:
            raise Refusal(HTTPStatus.CONFLICT, f'conflict with "{other}": .zones')
        self._managers[path] = manager
        before = self.objects.get(path)
        if before != applied:
            self._put(path, applied)
        generation = self._generation(path, before, applied)
        if self.loses_answers:
            raise ConnectionAbortedError
        return {**applied, "metadata": applied["metadata"] | generation}

    def _apply_status(self, path: str, applied: Object) -> Object:
        """A claim's status of devices, each of which must be allocated to it."""
        if path not in self.objects:
            raise Refusal(HTTPStatus.NOT_FOUND, f"{path} not found")
        status = self.objects[path]["status"]
        allocated = [
            (one["driver"], one["pool"], one["device"]) for one in status["allocation"]["devices"]["results"]
        ]
        for one in applied["status"]["devices"]:
            if (one["driver"], one["pool"], one["device"]) not in allocated:
                raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"status.devices: {one} is not allocated")
        self.objects[path] = {**self.objects[path], "status": {**status, **applied["status"]}}
        return self.objects[path]

    def _generation(self, path: str, before: Object | None, applied: Object) -> Object:
        """The object's uid, and its generation, which rises with each change."""
        if before is None:
            self._version += 1
            self._generations[path] = {"uid": str(self._version), "generation": 1}
        elif before != applied:
            self._generations[path]["generation"] += 1
        return dict(self._generations[path])

    def taken_by(self, path: str, manager: str) -> None:
        """From now on *manager* owns the fields of the object at *path*."""
        self._managers[path] = manager

    def _create(self, path: str, created: Object) -> Object:
        if path in self.objects:
            raise Refusal(HTTPStatus.CONFLICT, f"{path} already exists")
        self.objects[path] = created
        return created

    def _put(self, path: str, item: Object) -> None:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = item
        self._note(kind, path, item)

    def _note(self, kind: str, path: str, item: Object) -> None:
        self._version += 1
        event = {"type": kind, "object": {**item, "metadata": self._metadata(item)}}
        self._events.append((path.rpartition("/")[0], event))
        self.changed.notify_all()

    def _metadata(self, item: Object) -> Object:
        return {**item.get("metadata", {}), "resourceVersion": str(self._version)}


def _version_of(event: Object) -> str:
    return str(event["object"]["metadata"]["resourceVersion"])


def _selected(query: dict[str, list[str]]) -> Callable[[Object], bool]:
    """What the field selector of a *query* selects by driver."""
    wanted = "spec.driver="
    fields = [one for text in query.get("fieldSelector", []) for one in text.split(",")]
    drivers = [one.removeprefix(wanted) for one in fields if one.startswith(wanted)]
    return lambda one: not drivers or one["spec"].get("driver") in drivers


def _handler(fake: FakeApiServer) -> type[Handler]:
    class ApiServer(Handler):
        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
            try:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self._send(HTTPStatus.UNAUTHORIZED, {"kind": "Status", "message": "Unauthorized"})
                elif "watch" in query:
                    self._stream(parts.path, int(query["resourceVersion"][0]))
                else:
                    self._send(HTTPStatus.OK, fake.answer(self.command, parts.path, query, body))
            except Refusal as refusal:
                causes = [{"reason": one, "message": ""} for one in refusal.causes]
                status = {"kind": "Status", "code": refusal.status, "message": refusal.message}
                self._send(refusal.status, {**status, "details": {"causes": causes}})

        do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - http.server names them

        def _send(self, status: int, body: Object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, collection: str, version: int) -> None:
            fake.requests.append(("WATCH", str(version)))
            self.send_response(HTTPStatus.OK)
            self.end_headers()
            for event in fake.events_after(collection, version):
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()

    return ApiServer
