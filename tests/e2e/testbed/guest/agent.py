"""Runs in the guest, over two virtio-serial ports: does what the tests ask for, and forwards Unix sockets.

Requests: one JSON object per line in both directions. A request has `id`, `op` and the operation's fields;
the reply has the same `id` and either the operation's results or `error`. Every request has a thread of its
own, so that a slow command does not hold up the others. Forwarding: the frames of `testbed/forwarding.py`.
Standard library only; ends when the host closes the first port.
"""
# pathlib takes longer to import than all the rest together, and emulation is slow.
# ruff: noqa: PTH101, PTH103, PTH120, PTH123, PTH207 - as little as possible is imported in the guest

import base64
import contextlib
import fcntl
import glob
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

REQUEST_PORT = "bayplan.agent"
STREAM_PORT = "bayplan.streams"
POLL_S = 0.02
BLKFLSBUF = 0x1261
# As in testbed/forwarding.py: stream, kind, length of what follows.
FRAME = struct.Struct("<IBI")
OPEN, SEND, END = range(3)
STREAM_CHUNK_BYTES = 1 << 16
reply_lock = threading.Lock()
services = {}


def encode(content):
    return base64.b64encode(content).decode()


def decode(text):
    return base64.b64decode(text or "")


def environment(extra):
    return {**os.environ, **(extra or {})}


def kill_group(process, signal_number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)


def op_run(request):
    process = subprocess.Popen(
        request["argv"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(request.get("env")),
        cwd=request.get("cwd"),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(decode(request.get("stdin")), timeout=request["limit_s"])
    except subprocess.TimeoutExpired:
        kill_group(process, signal.SIGKILL)
        out, err = process.communicate()
        return {"timed_out": True, "exit_code": None, "stdout": encode(out), "stderr": encode(err)}
    return {"exit_code": process.returncode, "stdout": encode(out), "stderr": encode(err)}


def cgroup_of_services():
    """The directory below which services get cgroups: the parent of the agent's own, where systemd gave it
    one, else /system.
    """
    with open("/proc/self/cgroup") as file:
        own = file.read().strip().removeprefix("0::")
    return "/sys/fs/cgroup" + (os.path.dirname(own) if own.endswith("/agent") else "/system")


def enter_cgroup(name):
    """The path of a service's own cgroup, made on demand."""
    parent = cgroup_of_services()
    os.makedirs(f"{parent}/{name}", exist_ok=True)
    return f"{parent}/{name}/cgroup.procs"


def op_start(request):
    """Start a background service; with `ready`, answer once it has said READY=1 (sd_notify)."""
    name, ready_limit_s = request["name"], request.get("ready_limit_s")
    running = services.get(name)
    if running is not None and running.poll() is None:
        raise RuntimeError(f"the service {name} runs already, as process {running.pid}")
    procs = enter_cgroup(name)
    env = environment(request.get("env"))
    notify = None
    if ready_limit_s:
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = f"/run/notify-{name}-{time.monotonic_ns()}"
        notify.bind(path)
        env["NOTIFY_SOCKET"] = path
    with open(request["log"], "ab") as log:
        # The shell enters the cgroup and becomes the service: no process of it is ever outside.
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'echo 0 >"$0"; exec "$@"', procs, *request["argv"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
    services[name] = process
    if notify is not None:
        wait_for_ready(process, notify, ready_limit_s)
        threading.Thread(target=drain, args=(notify,), daemon=True).start()
    return {"pid": process.pid, "exit_code": process.poll()}


def wait_for_ready(process, notify, limit_s):
    deadline = time.monotonic() + limit_s
    notify.settimeout(0.2)
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            if b"READY=1" in notify.recv(4096).split(b"\n"):
                return
    if process.poll() is not None:
        raise RuntimeError(f"the service ended with {process.returncode} before it was ready")
    raise RuntimeError(f"the service was not ready after {limit_s} s")


def drain(notify):
    notify.settimeout(None)
    while True:
        notify.recv(4096)


def op_signal(request):
    """Send a signal to a service's main process and, with `wait_s`, wait for its end."""
    process = services[request["name"]]
    if process.poll() is None:
        process.send_signal(request["signal"])
    if request.get("wait_s"):
        try:
            process.wait(request["wait_s"])
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the service did not end within {request['wait_s']} s") from None
    return {"exit_code": process.poll()}


def op_service(request):
    process = services.get(request["name"])
    if process is None:
        return {"known": False}
    return {"known": True, "pid": process.pid, "exit_code": process.poll()}


def op_read(request):
    """The contents of files; those that cannot be read are left out."""
    found = {}
    for pattern in request["paths"]:
        for path in sorted(glob.glob(pattern)) if request.get("glob") else [pattern]:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                found[path] = encode(file.read())
    return {"files": found}


def op_write(request):
    path = request["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(decode(request["content"]))
    os.chmod(path, request.get("mode", 0o644))
    return {}


def op_await_socket(request):
    """Wait until something listens on a Unix socket."""
    deadline = time.monotonic() + request["limit_s"]
    watched = services.get(request.get("service"))
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(request["path"])
            return {}
        if watched is not None and watched.poll() is not None:
            raise RuntimeError(f"the service {request['service']} ended with {watched.returncode}")
        time.sleep(POLL_S)
    raise RuntimeError(f"nothing listened on {request['path']} for {request['limit_s']} s")


def op_await_text(request):
    """Wait until a file holds a text, from an offset on; answers with the file's contents from there."""
    deadline = time.monotonic() + request["limit_s"]
    wanted = request["text"].encode()
    content = b""
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open(request["path"], "rb") as file:
            file.seek(request.get("offset", 0))
            content = file.read()
            if wanted in content:
                return {"content": encode(content)}
        time.sleep(POLL_S)
    tail = content[-1000:].decode(errors="replace")
    raise RuntimeError(
        f"{request['path']} did not say {request['text']!r} in {request['limit_s']} s, but: {tail}"
    )


def op_ping(request):
    return {"uptime_s": time.clock_gettime(time.CLOCK_BOOTTIME)}


def op_resume(request):
    """After the machine was restored: the time of day, and the disk that was exchanged meanwhile."""
    time.clock_settime(time.CLOCK_REALTIME, request["time_s"])
    if request.get("disk"):
        mount_exchanged(request["disk"])
    return {}


def mount_exchanged(serial):
    """Mount the disk with this serial number as /opt/SERIAL, whatever the kernel read of it before."""
    for path in glob.glob("/sys/block/vd*/serial"):
        with open(path) as file:
            if file.read().strip() != serial:
                continue
        device = "/dev/" + path.split("/")[3]
        with open(device, "rb") as disk:
            fcntl.ioctl(disk, BLKFLSBUF)
        directory = "/opt/" + serial
        os.makedirs(directory, exist_ok=True)
        subprocess.run(["mount", "-t", "ext4", "-o", "ro,noatime", device, directory], check=True)
        return
    raise RuntimeError("no disk has the serial number " + serial)


OPERATIONS = {
    name.removeprefix("op_"): function for name, function in globals().items() if name.startswith("op_")
}


def serve(port, line):
    request = json.loads(line)
    try:
        reply = OPERATIONS[request["op"]](request)
    except Exception as error:  # noqa: BLE001 - whatever it is, the host waits for an answer
        reply = {"error": f"{type(error).__name__}: {error}"}
    text = json.dumps({"id": request["id"], **reply}).encode() + b"\n"
    with reply_lock:
        while text:
            text = text[os.write(port, text) :]


class Forwarder:
    """Connects to Unix sockets for the host: each stream of the port is a connection."""

    def __init__(self, port):
        self.port = port
        self.connections = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(port, selectors.EVENT_READ, None)

    def run(self):
        received = b""
        while True:
            for key, _ in self.selector.select():
                if key.data is not None:
                    self.relay(key.data)
                    continue
                chunk = os.read(self.port, STREAM_CHUNK_BYTES)
                if not chunk:
                    return
                received = self.take_frames(received + chunk)

    def take_frames(self, received):
        """Do what the whole frames say; the rest."""
        while len(received) >= FRAME.size:
            stream, kind, length = FRAME.unpack_from(received)
            if len(received) < FRAME.size + length:
                break
            payload, received = received[FRAME.size : FRAME.size + length], received[FRAME.size + length :]
            try:
                self.take(stream, kind, payload)
            except OSError:
                self.end(stream)
        return received

    def take(self, stream, kind, payload):
        if kind == OPEN:
            connection = self.connections[stream] = socket.socket(socket.AF_UNIX)
            connection.connect(payload.decode())
            self.selector.register(connection, selectors.EVENT_READ, stream)
        elif stream in self.connections:
            if kind == SEND:
                self.connections[stream].sendall(payload)
            else:
                self.forget(stream)

    def relay(self, stream):
        connection = self.connections.get(stream)
        if connection is None:
            return
        try:
            chunk = connection.recv(STREAM_CHUNK_BYTES)
        except OSError:
            chunk = b""
        if chunk:
            self.write(stream, SEND, chunk)
        else:
            self.end(stream)

    def end(self, stream):
        self.forget(stream)
        self.write(stream, END, b"")

    def forget(self, stream):
        connection = self.connections.pop(stream, None)
        if connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(connection)
            connection.close()

    def write(self, stream, kind, payload):
        frame = FRAME.pack(stream, kind, len(payload)) + payload
        while frame:
            frame = frame[os.write(self.port, frame) :]


def find_port(name):
    for entry in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(entry) as file:
            if file.read().strip() == name:
                return os.open("/dev/" + entry.split("/")[-2], os.O_RDWR)
    sys.exit("bayplan guest: no virtio port " + name)


def main():
    port = find_port(REQUEST_PORT)
    threading.Thread(target=Forwarder(find_port(STREAM_PORT)).run, daemon=True).start()
    # Joined once a line is whole: a request may carry megabytes.
    pieces = []
    while True:
        received = os.read(port, 1 << 16)
        if not received:
            return
        *ends, rest = received.split(b"\n")
        for end in ends:
            line = b"".join([*pieces, end])
            pieces = []
            threading.Thread(target=serve, args=(port, line), daemon=True).start()
        pieces.append(rest)


main()
