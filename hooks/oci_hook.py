"""The end of bayplan that OCI runtimes start: hands a container to the daemon, lets it through or refuses.

The daemon decides and applies; nothing is parsed, written or remembered here. Every start of a container
waits for this program, so that it is one short file and imports only what is built into the interpreter:
`import json` alone would double its time. `oci-hook` starts it. Whenever it is killed, it leaves nothing
behind. Python 3.9 and later: the one of the system, which may be older than bayplan's own.
"""

import _socket
import posix
import sys
from time import monotonic, sleep

USAGE = """\
usage: oci-hook [--socket PATH] [--timeout SECONDS] [--on-failure allow|refuse] [--log-socket PATH] MODE
MODE: createRuntime | poststop (OCI hooks) | precreate (podman); what else there is, bayplan-runtime uses"""

BODY_LIMIT = 16 << 20
"""Bytes of a state, a spec or an answer. The largest real specs are a hundredth of it."""
HEAD_LIMIT = 64
LINE_LIMIT = 4000
KMSG_LIMIT = 900
"""Characters of a message, and bytes of one in the kernel's log: of a record above 1024 it takes nothing."""
CHUNK = 1 << 16
BACKLOG_PAUSE_S = 0.01
WARNING, ERROR = 28, 27
"""Priorities of syslog, facility daemon."""
REGULAR_FILE = 0o10
"""The type of a file, in the upper bits of its mode."""
HUNG_UP = "the daemon at %s hung up before it had answered"
SANDBOX_TYPES = ("cri-o.ContainerType", "cri.container-type", "docker.type")
WRAPPED = ("create", "update", "start", "delete", "pass")
"""Modes that end in becoming the real runtime, whose arguments follow."""


class RefusedError(Exception):
    """The daemon decided against the container; the text is for people."""


class FailedError(Exception):
    """The daemon could not be asked, or could not answer; the text says why."""


class UsageError(Exception):
    """Words on our command line that we do not know."""


class Settings:
    """What the command line says. One deadline holds for everything that is waited for."""

    def __init__(self, argv: list[str]) -> None:
        said = dict.fromkeys(("runtime", "id", "bundle", "root", "log", "log-format", "problem"), "")
        said |= {"socket": "/run/bayplan/oci.sock", "timeout": "2", "on-failure": "allow", "log-socket": ""}
        position = 1
        while position < len(argv) and argv[position].startswith("--"):
            name, _, value = argv[position][2:].partition("=")
            if argv[position][2:] == name:
                position += 1
                value = argv[position] if position < len(argv) else ""
            if name not in said:
                raise UsageError(f"unknown option --{name}")
            said[name] = value or said[name]
            position += 1
        self.said, self.mode, self.rest = said, "".join(argv[position : position + 1]), argv[position + 1 :]
        self.socket, self.problems, self.timeout_s = said["socket"], [], 2.0
        try:
            self.timeout_s = float(said["timeout"])
            if not 0 < self.timeout_s <= 3600:
                raise ValueError
        except ValueError:
            self.timeout_s, found = 2.0, f"found {said['timeout']!r}, expected seconds above 0, at most 3600"
            self.problems.append(f"--timeout: {found}")
        self.refuse = said["on-failure"] == "refuse"
        if said["on-failure"] not in ("allow", "refuse"):
            self.problems.append(f"--on-failure: found {said['on-failure']!r}, expected allow or refuse")
        self.deadline = monotonic() + self.timeout_s

    def left_s(self) -> float:
        """The time that is left; raises TimeoutError when there is none."""
        left_s = self.deadline - monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def main(argv: list[str]) -> int:
    """Run one mode; the exit status."""
    try:
        settings = Settings(argv)
        if settings.mode in WRAPPED:
            return wrapper(settings)
        if settings.mode not in ("createRuntime", "poststop", "precreate") or settings.rest:
            raise UsageError(f"unknown mode {' '.join([settings.mode, *settings.rest]) or '(none)'}")
        if settings.problems:
            raise UsageError("; ".join(settings.problems))
    except UsageError as error:
        posix.write(2, f"oci-hook: {error}\n{USAGE}\n".encode(errors="replace"))
        return 2
    return precreate(settings) if settings.mode == "precreate" else hook(settings)


def hook(settings: Settings) -> int:
    """The stages createRuntime and poststop. At poststop the container is gone whatever we say, and old
    versions of runc would fail to delete what is left of it: it never fails."""
    state, name, last = b"", settings.mode, settings.mode == "poststop"
    try:
        state = read_stdin(settings)
        ask(settings, name, state)
    except RefusedError as error:
        text = f"{name}{id_in(state)}: {error}"
        return report(settings, ERROR, text) if last else refuse(settings, text)
    except FailedError as error:
        text = f"{name}{id_in(state)}: {error}"
        if settings.refuse and not last:
            return refuse(settings, f"{text}; refused")
        outcome = "reconciliation will find it" if last else "let through"
        return report(settings, WARNING, f"{text}; {outcome}")
    return 0


def precreate(settings: Settings) -> int:
    """The hook of podman: the spec goes in, the spec comes out, whole or not at all."""
    spec = b""
    try:
        spec = read_stdin(settings)
        rewritten = ask(settings, "precreate", spec) or spec
        if rewritten.strip()[:1] + rewritten.strip()[-1:] != b"{}":
            raise FailedError(f"the daemon at {settings.socket} answered with something that is no spec")
    except RefusedError as error:
        return refuse(settings, f"precreate: {error}")
    except FailedError as error:
        # Without the whole spec there is nothing to let through.
        if settings.refuse or not spec:
            return refuse(settings, f"precreate: {error}; refused")
        report(settings, WARNING, f"precreate: {error}; let through")
        rewritten = spec
    try:
        write_all(1, rewritten)
    except OSError as error:
        return refuse(settings, f"precreate: nobody reads the spec ({error.strerror}); refused")
    return 0


def ask(settings: Settings, verb: str, body: bytes) -> bytes:
    """The daemon's answer to one question; raises RefusedError or FailedError."""
    try:
        return exchange(settings, verb, body)
    except (RefusedError, FailedError):
        raise
    except ConnectionResetError:
        problem = HUNG_UP % settings.socket
    except (TimeoutError, _socket.timeout):  # The same from Python 3.10 on.
        problem = f"the daemon at {settings.socket} did not answer within {settings.timeout_s:g} s"
    except OSError as error:
        problem = f"no daemon answers at {settings.socket} ({error.strerror or error})"
    except Exception as error:  # noqa: BLE001 - a defect of ours must not decide about a container
        problem = f"a defect of oci-hook: {error!r}"
    raise FailedError(problem)


def exchange(settings: Settings, verb: str, body: bytes) -> bytes:
    """One connection, one question, one answer; raises whatever comes in between."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connect(settings, connection)
        try:
            connection.settimeout(settings.left_s())
            connection.sendall(b"bayplan-oci/1 %s %d\n" % (verb.encode(), len(body)) + body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # Who hangs up before reading all of it may have said why.
        return receive(settings, connection)
    finally:
        connection.close()


def connect(settings: Settings, connection: "_socket.socket") -> None:
    """Connect; a full queue of a busy daemon says EAGAIN at once, and is waited for."""
    while True:
        connection.settimeout(settings.left_s())
        try:
            connection.connect(settings.socket)
        except BlockingIOError:
            sleep(min(BACKLOG_PAUSE_S, settings.left_s()))
        else:
            return


def receive(settings: Settings, connection: "_socket.socket") -> bytes:
    """The body of an answer `ok`; the text of the others is raised."""
    answer, end, length, word = bytearray(), -1, 0, b""
    while end < 0 or len(answer) < end + length:
        connection.settimeout(settings.left_s())
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise FailedError(HUNG_UP % settings.socket)
        answer += chunk
        if end < 0:
            end = answer.find(b"\n", 0, HEAD_LIMIT) + 1 or -1
            if end < 0 and len(answer) < HEAD_LIMIT:
                continue
            word, _, number = bytes(answer[:end]).rstrip(b"\n").partition(b" ")
            if end < 0 or word not in (b"ok", b"refused", b"error") or not number.isdigit():
                raise FailedError(f"what answers at {settings.socket} is not a bayplan daemon")
            length = int(number)
            if length > BODY_LIMIT:
                raise FailedError(f"{settings.socket} announced {length} bytes, above {BODY_LIMIT}")
    body = bytes(answer[end : end + length])
    if word == b"ok":
        return body
    text = body.decode(errors="replace") or "the daemon gave no reason"
    raise RefusedError(text) if word == b"refused" else FailedError(text)


def read_stdin(settings: Settings) -> bytes:
    """Everything on standard input; raises FailedError."""
    from select import POLLIN, poll  # noqa: PLC0415 - the wrapper does without

    chunks: list[bytes] = []
    size = 0
    ready = poll()
    ready.register(0, POLLIN)
    try:
        while True:
            if not ready.poll(settings.left_s() * 1000):
                raise TimeoutError
            chunk = posix.read(0, CHUNK)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
            if size > BODY_LIMIT:
                raise FailedError(f"standard input is longer than {BODY_LIMIT} bytes")
    except TimeoutError:
        raise FailedError(f"standard input did not end within {settings.timeout_s:g} s") from None
    except OSError as error:
        raise FailedError(f"standard input cannot be read ({error.strerror})") from None


def read_at_most(descriptor: int, limit: int) -> bytearray:
    """What comes, up to the end or a little more than *limit*; raises OSError."""
    content = bytearray()
    while len(content) <= limit and (chunk := posix.read(descriptor, CHUNK)):
        content += chunk
    return content


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it; raises OSError."""
    view = memoryview(content)
    while view:
        view = view[posix.write(descriptor, view) :]


def refuse(settings: Settings, text: str) -> int:
    """Report why there will be no container, also where whoever asked for it looks; the exit status 1.

    podman (precreate) and crun throw away what a hook says on standard error. So it is written to theirs: the
    terminal of the person who called podman, and what conmon reads of crun. podman shows the runtime's log
    instead if that is a single JSON object, and has nothing else for a container with a terminal.
    """
    report(settings, ERROR, text)
    try:
        parent = posix.getppid()
        with open(f"/proc/{parent}/cmdline", "rb") as file:  # noqa: PTH123 - pathlib would have to be imported
            words = file.read().decode(errors="surrogateescape").split("\0")
        called = words[0].rpartition("/")[2]
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
        if called in ("crun", "podman"):
            terminal = posix.open(f"/proc/{parent}/fd/2", flags)
            write_all(terminal, as_line(text).encode(errors="replace") + b"\n")
        if called in ("crun", "runc"):
            logs = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--log"]
            logs += [word[len("--log=") :] for word in words if word.startswith("--log=")]
            if logs and "--log-format=json" in words:
                said = "".join(f"\\{one}" if one in '"\\' else one for one in as_line(text))
                line = f'{{"level":"error","msg":"{said}"}}\n'.encode(errors="replace")
                write_log(logs[0].removeprefix("file:"), line, flags)
    except OSError:
        pass  # It is in syslog.
    return 1


def write_log(path: str, line: bytes, flags: int) -> None:
    """Write *line* to the log of a runtime; raises OSError. An empty file is exchanged for another one: what
    the runtime adds itself, such as "error running hook", goes where nobody looks, and *line* stays alone."""
    log = posix.open(path, flags)
    status = posix.fstat(log)
    if status.st_mode >> 12 == REGULAR_FILE and not status.st_size:
        posix.unlink(path)
        log = posix.open(path, flags | posix.O_CREAT | posix.O_EXCL, status.st_mode & 0o777)
    write_all(log, line)


def as_line(text: str) -> str:
    """What people read of *text*: one line, not too long."""
    return "bayplan: " + "".join(one if one.isprintable() else " " for one in text)[:LINE_LIMIT]


def report(settings: Settings, priority: int, text: str, *, quiet: bool = False) -> int:
    """One line for people: on standard error, where runc picks it up, and to syslog (else the kernel's log),
    since crun throws standard error away, and so do all when the hook succeeds. Returns 0."""
    line = as_line(text)
    line_bytes = line.encode(errors="replace")
    if not quiet:
        try:
            posix.write(2, line_bytes + b"\n")
        except OSError:
            pass
    message = b"<%d>%s" % (priority, line_bytes)
    try:
        system_log = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        system_log.setblocking(False)  # noqa: FBT003 - the standard library's signature
        system_log.connect(settings.said["log-socket"] or "/dev/log")
        system_log.send(message)
    except BlockingIOError:
        pass  # It is there, and busy. A container does not wait for that.
    except OSError:
        try:
            kernel_log = posix.open("/dev/kmsg", posix.O_WRONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
            posix.write(kernel_log, message[:KMSG_LIMIT])
            posix.close(kernel_log)
        except OSError:
            pass
    return 0


def id_in(state: bytes) -> str:
    """The id in a container's state, for messages: the first in it, where all runtimes have theirs."""
    _, _, rest = state.partition(b'"id"')
    return " of " + rest.split(b'"', 2)[1].decode(errors="replace") if rest.count(b'"') > 1 else ""


def wrapper(settings: Settings) -> int:
    """Serve a call of the runtime, then become the real one. Returns only if that must not be, or cannot."""
    said, mode, name = settings.said, settings.mode, f"{settings.mode} of {settings.said['id']}"
    for problem in settings.problems:
        report(settings, WARNING, f"bayplan-runtime: {problem}; the default is used", quiet=True)
    if said["problem"]:
        report(settings, WARNING, f"bayplan-runtime: {said['problem']}; let through", quiet=True)
    runtime, resources = real_runtime(settings), b""
    try:
        if mode == "create":
            ask(settings, mode, to_bytes("\0".join((said["bundle"], said["id"], runtime, said["root"]))))
        elif mode == "update":
            resources = read_stdin(settings)
            resources = ask(settings, mode, to_bytes(said["id"]) + b"\0" + resources) or resources
        elif mode in ("start", "delete"):
            ask(settings, mode, to_bytes(said["id"]))
    except (RefusedError, FailedError) as error:
        # Resources that could not be read whole cannot be let through either. A pod's own container can.
        refuse = settings.refuse and not (mode == "create" and is_sandbox(said["bundle"]))
        refuse = refuse or isinstance(error, RefusedError) or (mode == "update" and not resources)
        if refuse and mode not in ("start", "delete"):
            return give_up(settings, f"{name}: {error}")
        # Standard error may be the container's own.
        report(settings, WARNING, f"{name}: {error}; let through", quiet=True)
    try:
        if mode == "update":
            become_stdin(resources)
        become(runtime, settings.rest)
    except OSError as error:
        report(settings, ERROR, f"bayplan-runtime: cannot run {runtime!r} ({error.strerror})")
    return 127


def is_sandbox(bundle: str) -> bool:
    """Whether the container is a pod's own one; asked only where the daemon, which knows, does not answer."""
    try:
        from json import loads  # noqa: PLC0415 - imported only where it is needed, as it takes time

        # What is no regular file has no end, or none for us to wait for.
        file = posix.open(f"{bundle}/config.json", posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
        spec = loads(read_at_most(file, BODY_LIMIT))
        said = spec["annotations"]
        if any(said.get(f"io.kubernetes.{key}") in ("sandbox", "podsandbox") for key in SANDBOX_TYPES):
            return True
        if said.get("io.container.manager") != "libpod" or said.get("io.kubernetes.cri-o.SandboxID"):
            return False
        # podman's own is the one in the pod's cgroup that names none as the pod's.
        path = spec["linux"]["cgroupsPath"]
        return "libpod_pod_" in path or len(path.rpartition("/")[0].rpartition("/")[2]) == 64
    except Exception:  # noqa: BLE001 - whatever it is, it says of no sandbox
        return False


def to_bytes(text: str) -> bytes:
    """The bytes that the command line had."""
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")


def become_stdin(content: bytes) -> None:
    """Make *content* this process's standard input: memory, which has no pipe's bound and leaves no file."""
    descriptor = posix.memfd_create("resources")
    write_all(descriptor, content)
    posix.lseek(descriptor, 0, 0)
    posix.dup2(descriptor, 0)


def give_up(settings: Settings, text: str) -> int:
    """Fail in the runtime's place: containerd and podman read the reason from the runtime's log, CRI-O from
    standard error."""
    report(settings, ERROR, text)
    if log := settings.said["log"]:
        from time import gmtime, strftime  # noqa: PLC0415 - imported only where it is needed, as it takes time

        now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        quoted = "".join(f"\\{one}" if one in '"\\' else one for one in as_line(text)[len("bayplan: ") :])
        line = f'time="{now}" level=error msg="{quoted}"\n'
        if settings.said["log-format"] == "json":
            line = f'{{"level":"error","msg":"{quoted}","time":"{now}"}}\n'
        try:
            flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
            write_all(posix.open(log, flags, 0o644), line.encode(errors="replace"))
        except OSError as error:
            report(settings, WARNING, f"{log} cannot be written ({error.strerror})", quiet=True)
    return 1


def real_runtime(settings: Settings) -> str:
    """The runtime to become: the environment's if nobody but root or us could have put it there, else the
    configured one."""
    wish = posix.environ.get(b"BAYPLAN_RUNTIME", b"").decode(errors="surrogateescape")
    if not wish:
        return settings.said["runtime"]
    try:
        found = posix.stat(wish)
        safe = found.st_uid in (0, posix.geteuid()) and not found.st_mode & 0o022 and wish.startswith("/")
        safe = safe and found.st_mode & 0o170000 == 0o100000 and posix.access(wish, posix.X_OK)
    except (OSError, ValueError):
        safe = False
    if safe and posix.getuid() == posix.geteuid():
        return wish
    text = f"BAYPLAN_RUNTIME: found {wish!r}, expected the absolute path of a program that only we can change"
    report(settings, WARNING, f"{text}; {settings.said['runtime']!r} is used", quiet=True)
    return settings.said["runtime"]


def become(runtime: str, argv: list[str]) -> None:
    """Turn into the runtime, with the environment and the signals that this process was started with: Python
    ignores two signals and may have set LC_CTYPE. Raises OSError."""
    from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]  # noqa: PLC0415 - what is built in, when it is needed

    for number in (SIGPIPE, SIGXFSZ):
        signal(number, SIG_DFL)
    environment, block = dict(posix.environ), b""
    try:
        descriptor = posix.open("/proc/self/environ", posix.O_RDONLY | posix.O_CLOEXEC)
        while chunk := posix.read(descriptor, CHUNK):
            block += chunk
        pairs = [entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry]
        environment = {name: value for name, _, value in pairs}
    except OSError:
        pass
    posix.execve(runtime, [runtime, *argv], environment)


def run() -> None:
    """The program. To tear the interpreter down would take 1.7 ms of the container's time; all writing is
    done."""
    posix._exit(main(sys.argv))
