"""The explorer page of a large model: its size, its first paint, and how long a browser takes to answer.

The browser is the system's Chromium, every network route is aborted, and times are those that the browser itself measures.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serve import write_model
from vlhmm.explorer import explorer_data, write_page
from vlhmm.lm import load

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SETTLED_MS = 600
"""After an interaction, until its events have been told."""
WATCHED = """
window.seen = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) seen.push([one.duration, one.processingEnd - one.processingStart]);
}).observe({ type: "event", durationThreshold: 16, buffered: true });
new MutationObserver(() => {
  if (document.documentElement?.dataset.ready !== undefined) window.readyAt ??= performance.now();
}).observe(document, { attributes: true, subtree: true });
"""


@dataclass(frozen=True)
class Interaction:
    """What a browser measured of one kind of interaction."""

    name: str
    longest_ms: float
    """From the input to the next paint, in steps of 8 ms; 0: all took less than 16 ms."""
    longest_handler_ms: float
    """Of that the scripts of the page."""


@dataclass(frozen=True)
class ExploredPage:
    """A page and what a browser measured of it."""

    states: int
    words: int
    shown: int
    """States on the map."""
    page_bytes: int
    seconds_to_make: float
    browser: str
    first_contentful_paint_ms: list[float]
    ready_ms: list[float]
    """Until everything is drawn and answers."""
    interactions: list[Interaction]


def explored(folder: Path, states: int, words: int, opened: int = 4) -> ExploredPage:
    """Make the page of an untrained model and open it so often; the last time it is used."""
    write_model(folder / "model", states, words)
    begun = time.perf_counter()
    lm = load(folder / "model")
    texts = ["w1 w2 w3 w4 w5 w6 w7 w8"]
    data = explorer_data(lm, folder=folder / "model", texts=texts, max_tokens=2000)
    written = write_page(data, folder / "page.html")
    seconds = time.perf_counter() - begun
    browser, paints, ready, interactions = measured(written.file, opened)
    return ExploredPage(
        states, words, written.states_shown, written.num_bytes, round(seconds, 1), browser, paints, ready, interactions
    )


def measured(page: Path | str, opened: int) -> tuple[str, list[float], list[float], list[Interaction]]:
    """The browser's name, first paints, times until the page is ready, and interactions."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise ValueError("there is no Chromium to open the page with: apt-get install -y chromium")
    paints: list[float] = []
    ready: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for number in range(opened):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            context.route(
                "**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort()
            )
            tab = context.new_page()
            tab.add_init_script(WATCHED)
            tab.goto(Path(page).resolve().as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            tab.wait_for_timeout(SETTLED_MS)
            paints.append(round(tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"), 1))
            ready.append(round(tab.evaluate("readyAt"), 1))
            interactions = _interactions(tab) if number == opened - 1 else []
            context.close()
        name = f"Chromium {browser.version}"
        browser.close()
    return name, paints, ready, interactions


def _interactions(tab: Any) -> list[Interaction]:
    found = []

    def step(name: str, act: Callable[[], Any]) -> None:
        tab.evaluate("seen.length = 0")
        act()
        tab.wait_for_timeout(SETTLED_MS)
        seen = tab.evaluate("seen")
        whole, handler = (round(max((one[at] for one in seen), default=0.0), 1) for at in (0, 1))
        found.append(Interaction(name, whole, handler))

    def keys(*pressed: str) -> None:
        for key in pressed:
            tab.keyboard.press(key)

    def drag() -> None:
        tab.mouse.move(400, 400)
        tab.mouse.down()
        for moved in range(12):
            tab.mouse.move(400 + 10 * moved, 400)
        tab.mouse.up()

    search = "input[type=search]"
    step("type into the search", lambda: (tab.focus(search), tab.keyboard.type("w40", delay=80)))
    step("choose a word", lambda: keys("ArrowDown", "Enter"))
    step("clear the search", lambda: tab.fill(search, ""))
    step("hover over the map", lambda: [tab.mouse.move(200 + 20 * at, 300 + 10 * at) for at in range(20)])
    step("click a state", lambda: tab.mouse.click(400, 400))
    tab.focus("canvas.map")
    step("go to the next state by key", lambda: keys("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"))
    step("zoom", lambda: keys("+", "+", "-"))
    step("drag the map", drag)

    def slide() -> None:
        slider.focus()
        keys("ArrowLeft", "ArrowLeft")

    slider = tab.locator(".card input[type=range]")
    if slider.count():
        step("move the slider of relevance", slide)
    for view in ("Reading", "Training", "Blocks", "Map"):
        step(f"open {view}", lambda view=view: tab.get_by_role("tab", name=view).click())  # type: ignore[misc]
    return found
