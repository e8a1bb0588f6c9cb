"""A headless Chromium, driven over the pipe of its DevTools protocol."""

import asyncio
import base64
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final, Self

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser")
_LIMIT_BYTES: Final = 64 << 20


class Browser:
    """Runs *program* within its context, with a profile in *directory*."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    @staticmethod
    def program() -> str | None:
        """A Chromium of this machine."""
        return next((found for name in PROGRAMS if (found := shutil.which(name))), None)

    async def __aenter__(self) -> Self:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --hide-scrollbars"
        # It reads from descriptor 3 and writes to 4.
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{theirs_in} 4>&{theirs_out}'
        with (self._directory / "browser.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("bash", "-c", command, self._program, str(self._directory / "profile")),
                pass_fds=(theirs_in, theirs_out),
                stdout=log,
                stderr=log,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to = os.fdopen(ours_out, "wb", buffering=0)
        reader = asyncio.StreamReader(limit=_LIMIT_BYTES)
        self._from, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb")
        )
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._from.close()
        self._to.close()

    async def open(self, url: str, width: int, height: int, *, dark: bool = False) -> "Page":
        """A page of that size, on which everything of *url* was loaded."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        await page.call("Runtime.enable")
        await page.call("Log.enable")
        await page.call("Page.enable")
        await page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        await page.go(url)
        return page

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._to.write(json.dumps(message).encode() + b"\0")
        found = await answer
        assert "error" not in found, f"{method}: {found['error']}"
        return dict(found["result"])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = json.loads((await reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message["method"] == "Page.loadEventFired":
                self._pages[message["sessionId"]].loaded.set()
            elif message["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self._pages[message["sessionId"]].complaints.append(json.dumps(message["params"]))


class Page:
    """One page. ``complaints`` are exceptions of its script, and what the browser logs of it; ``loaded``: all
    of it is there."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.complaints: list[str] = []
        self.loaded = asyncio.Event()
        self._browser = browser
        self._session = session

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command about this page."""
        return await self._browser.call(method, self._session, **params)

    async def go(self, url: str) -> None:
        """Load *url*, to the end."""
        self.loaded.clear()
        await self.call("Page.navigate", url=url)
        await self.loaded.wait()

    async def value(self, expression: str) -> Any:
        """What *expression* is on the page."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Wait until *expression* is true on the page."""
        while not await self.value(expression):  # noqa: ASYNC110 - nothing reports what a page shows
            await asyncio.sleep(0.05)

    async def screenshot(self, path: Path) -> None:
        """The whole page as a picture, however long it is."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        await asyncio.to_thread(_write, path, base64.b64decode(shot["data"]))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
