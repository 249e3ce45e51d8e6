"""A real Chromium without a screen, and what must not happen in it."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

#: Names of the program: Debian's, Google's.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Set where the tests must run (`.ci/run`): what is missing is a failure, not a skip.
REQUIRED = "MARSCHED_BROWSER_TESTS"

# Nothing but the pages under test is asked for anything over the network.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # its pages are no business of the arenas' file system
)
TIMEOUT = 60_000  # milliseconds; a busy machine draws slowly

# All canvases, also those in the shadow trees that Bokeh draws into: how many colours each has.
_COLOURS = """() => {
  const found = [];
  const walk = (root) => {
    for (const element of root.querySelectorAll('*')) {
      if (element.shadowRoot) walk(element.shadowRoot);
      if (element.tagName !== 'CANVAS' || !element.width || !element.height) continue;
      const context = element.getContext('2d');
      if (!context) continue;
      const pixels = context.getImageData(0, 0, element.width, element.height).data;
      const colours = new Set();
      for (let i = 0; i < pixels.length; i += 4)
        if (pixels[i + 3]) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
      found.push(colours.size);
    }
  };
  walk(document);
  return found;
}"""
# The most rows that a source of data on the page has.
_ROWS = """() => {
  if (!window.Bokeh || !Bokeh.documents.length) return 0;
  let most = 0;
  for (const one of Bokeh.documents)
    for (const model of one._all_models.values())
      if (model.type === 'ColumnDataSource')
        for (const column of Object.values(model.data ?? {}))
          most = Math.max(most, column?.length ?? 0);
  return most;
}"""


def missing() -> str | None:
    """Return why there can be no browser here, or None."""
    try:
        import playwright  # noqa: F401  # is it there?
    except ImportError:
        return "no browser tests: no playwright (pip install '.[browser]')"
    if program() is None:
        return "no browser tests: there is no Chromium (Debian: apt install chromium)"
    return None


def demand(reason: str | None) -> None:
    """Skip the test for a reason, or fail where the browser tests are required."""
    if reason is not None:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)


def program() -> str | None:
    """Return the path of the Chromium to use, or None."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> "Iterator[Browser]":
    """Start Chromium with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of which every error, warning of Bokeh's and failed request is remembered.

    Attributes
    ----------
    page : playwright.sync_api.Page
    faults : list of str
        Errors on the console, exceptions, requests without an answer or with one of 400 and more.
    requests : list of str
        Addresses that were asked for.
    """

    def __init__(self, context: "BrowserContext") -> None:
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location.get('url')})")

    def _failed(self, request: Any) -> None:
        # A page that is left while it loads drops what it had asked for.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.faults.append(f"request: {request.url}: {request.failure}")

    def _answered(self, response: Any) -> None:
        if response.status >= 400:
            self.faults.append(f"answer: {response.status} for {response.url}")

    def drawn(self, rows: int = 1, colours: int = 3, frame: Any = None) -> None:
        """Wait until a source has this many rows, and a canvas this many colours."""
        where = frame or self.page
        where.wait_for_function(f"() => ({_ROWS})() >= {rows}", timeout=TIMEOUT)
        where.wait_for_function(
            f"() => Math.max(0, ...({_COLOURS})()) >= {colours}", timeout=TIMEOUT
        )


class Camera:
    """Takes pictures of pages into one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def take(self, what: Any, name: str, **options: Any) -> Path:
        """Take a picture of a page or an element of it."""
        path = self.directory / f"{name}.png"
        what.screenshot(path=path, animations="disabled", **options)
        _make_small(path)
        return path


def _make_small(path: Path) -> None:
    """Write a picture anew with a palette, as it comes with the documentation."""
    try:
        from PIL import Image
    except ImportError:  # it comes with matplotlib
        return
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
