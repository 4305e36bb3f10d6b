"""A page in headless Chromium: what a script finds in it, or how it looks.

The page stands in a frame of a given width inside of another page, which is how a window may be
narrower than Chromium lets it be; the script runs beside the frame and its answer is read from what
Chromium says the page has become. So no driver is needed.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ALONE = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
"""Nothing is shown, kept or fetched; a name that the page would look up is not found."""
AXE = "axe-core/axe.min.js"
PLACES = ("/usr/lib/node_modules", "/usr/local/lib/node_modules", "/usr/share/nodejs")
HARNESS = """<!DOCTYPE html><html><body style="margin:0">
<iframe id="page" style="border:0;width:{width}px;height:{height}px" srcdoc="{page}"></iframe>
<pre id="answer"></pre><script>
const frame = document.getElementById("page"), faults = [];
frame.contentWindow.onerror = (message) => {{ faults.push(message); }};
frame.onload = async () => {{
  const window_ = frame.contentWindow, page = frame.contentDocument;
  let answer;
  try {{ answer = await (async () => {{ {script} }})(); }}
  catch (error) {{ faults.push(String(error)); }}
  document.getElementById("answer").textContent = JSON.stringify({{ answer, faults }});
}};
</script></body></html>"""


def chromium() -> str:
    """The browser; a test without one is skipped."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    return found


def axe() -> str:
    """The script of axe-core; a test without it is skipped."""
    named = os.environ.get("AXE_CORE")
    paths = [Path(named)] if named else [Path(place) / AXE for place in PLACES]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        pytest.skip(f"axe-core is not installed: no {' or '.join(map(str, paths))}; see AXE_CORE")
    return found.read_text(encoding="utf-8")


def started(folder: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Chromium on a file, with a profile of its own under ``folder``."""
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    return subprocess.run(
        [chromium(), *ALONE, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def answer_of(
    folder: Path, page: Path, script: str, *flags: str, width: int = 1280, height: int = 900
) -> Any:
    """What ``script``, the body of an async function, returns of ``page`` and ``window_``; fails
    on an error of the page's own script or a message on the console."""
    text = html.escape(page.read_text(encoding="utf-8"))
    harness = folder / "harness.html"
    harness.write_text(
        HARNESS.format(width=width, height=height, page=text, script=script), encoding="utf-8"
    )
    log = ("--enable-logging=stderr", "--v=0")
    done = started(folder, harness, "--dump-dom", "--virtual-time-budget=60000", *log, *flags)
    assert "CONSOLE" not in done.stderr, done.stderr
    (found,) = re.findall(r'<pre id="answer">(.*?)</pre><script>', done.stdout, re.DOTALL)
    answer = json.loads(html.unescape(found))
    assert answer["faults"] == []
    return answer.get("answer")
