"""The page in a browser that may reach no network: what it shows, what it asks for, and how it is used without a mouse."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tiny import byte_tokenizer

import vlhmm
from vlhmm.cli import main
from vlhmm.explorer import analyse_text, explorer_data, explorer_page, write_page
from vlhmm.reports import as_json

TEXT = "the file reads the name of the file ."
SITE = "http://explorer.test/"


def command(*arguments: object) -> list[Any]:
    """The JSON values that a command prints, one a line."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("sys.argv", ["vlhmm", *map(str, arguments), "--json"])
        assert main() == 0
    return [json.loads(line) for line in printed.getvalue().splitlines()]


@pytest.fixture(scope="module")
def lm(folder: Path) -> vlhmm.LanguageModel:
    return vlhmm.load(folder)


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    page = folder.parent / "page.html"
    [answer] = command("explore", folder, TEXT, "--must-contain", "name", "--out", page, "--device", "cpu")
    assert answer["file"] == str(page)
    assert answer["num_bytes"] == page.stat().st_size
    return page


class Seen:
    """What a page did that it must not do."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, written: Path) -> Iterator[Open]:
    """Opens the page in a context of its own; at the end nothing may have gone wrong."""
    contexts, seen = [], Seen()

    def open_page(*, address: str | None = None, route: Any = None, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        contexts.append(context)

        def refuse(request: Any) -> None:
            seen.requests.append(request.request.url)
            request.abort()

        context.route(lambda url: not url.startswith("file:"), route or refuse)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: seen.errors.append(message.text))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.goto(address or written.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.seen = seen
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen.requests == []
    assert seen.errors == []


def values(page: Any, selector: str) -> list[float]:
    """The unrounded numbers behind what is shown."""
    return [float(value) for value in page.eval_on_selector_all(selector, "all => all.map((one) => one.dataset.value)")]


def states(page: Any, selector: str) -> list[int]:
    return [int(value) for value in page.eval_on_selector_all(selector, "all => all.map((one) => one.dataset.state)")]


def view(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def test_the_reading_shows_what_the_commands_print(opened: Open, folder: Path) -> None:
    page = opened()
    view(page, "Reading")
    [posterior] = command("posterior", folder, TEXT, "--top", 4)
    [path] = command("viterbi", folder, TEXT)
    [score] = command("score", folder, TEXT)
    figures = {
        name: float(value)
        for name, value in page.eval_on_selector_all(
            "[data-figure]", "all => all.map((one) => [one.dataset.figure, one.dataset.value])"
        )
    }
    assert figures == {
        "tokens": len(score["tokens"]),
        "log p(text)": score["log_prob"],
        "perplexity": score["perplexity"],
        "log p(text, path)": path["log_prob"],
        "path entropy": posterior["path_entropy"],
    }
    assert values(page, ".token") == [token["log_prob"] for token in score["tokens"]]
    shown = [token.strip() for token in page.locator(".token > span").all_inner_texts()]
    assert shown == [token["token"] for token in score["tokens"]]
    for column, (token, best) in enumerate(zip(posterior["tokens"], path["tokens"], strict=True)):
        pills = f'.pill[data-column="{column}"]'
        expected = {one["state"]: one["prob"] for one in token["states"]}
        found = page.eval_on_selector_all(
            pills, "all => all.map((one) => [one.dataset.state, one.dataset.value ?? null])"
        )
        assert {int(state): float(prob) for state, prob in found if prob is not None} == expected
        on_path = f'{pills}[aria-label$="on the likeliest path"]'
        assert states(page, on_path) == [best["state"]]


def test_words_in_place_of_a_word_are_those_of_infill(opened: Open, folder: Path) -> None:
    page = opened()
    view(page, "Reading")
    page.locator(".token").nth(4).click()
    [filled] = command("infill", folder, TEXT.replace("name", "___"), "--num", 0)
    expected = filled["gaps"][0]["positions"][0]
    assert page.locator(".infill .word").first.inner_text().split()[0] == expected[0]["token"]
    assert values(page, ".infill li") == pytest.approx([one["prob"] for one in expected], rel=1e-5)


def test_the_constraint_is_followed_from_its_probability_to_its_end(opened: Open, lm: vlhmm.LanguageModel) -> None:
    page = opened()
    view(page, "Reading")
    found = values(page, ".constraint-point")
    assert found == lm.constraint_path(TEXT, vlhmm.contains("name"))
    assert found[0] == pytest.approx(lm.constraint_probability("", vlhmm.contains("name"), len(found) - 1))
    assert found[-1] == 1


def test_cards_show_what_inspect_prints(opened: Open, folder: Path) -> None:
    page = opened()
    [found] = command("inspect", folder, "--memory", 0, "--top", 2)
    for one in found["states"]:
        number = one["state"]["state"]
        page.fill("input[type=search]", str(number))
        page.get_by_role("option", name=f"state {number}").click()
        page.locator(".card input[type=range]").evaluate(
            "one => { one.value = 1; one.dispatchEvent(new Event('input')); }"
        )
        assert states(page, ".card h2") == [number]
        assert values(page, ".card .hint[data-value]") == pytest.approx([one["num_tokens"]], rel=1e-5)
        expected = one["state"]["words"]
        words = page.eval_on_selector_all(".card .relevant li", "all => all.map((one) => one.dataset.word)")
        assert words[: len(expected)] == [word for word, _ in expected]
        probs = values(page, ".card .relevant li")[: len(expected)]
        assert probs == pytest.approx([prob for _, prob in expected], rel=1e-5)
        assert values(page, ".card .next .state-row") == pytest.approx(
            [prob for _, prob in one["next_states"]], rel=1e-5
        )
        assert states(page, ".card .next .state-row") == [state["state"] for state, _ in one["next_states"]]


def test_blocks_and_training_show_what_inspect_and_info_print(opened: Open, folder: Path) -> None:
    page = opened()
    view(page, "Blocks")
    [found] = command("inspect", folder, "--memory", 0, "--top", 0)
    assert values(page, ".block-row") == [block["num_tokens"] for block in found["blocks"]]
    view(page, "Training")
    [about] = command("info", folder)
    cells = values(page, ".training-view td")
    assert cells == [value for splits in about["training"]["perplexity"].values() for value in splits.values()]
    assert min(values(page, ".check")) == about["training"]["best_valid_perplexity"]


def test_every_view_works_from_the_keyboard(opened: Open) -> None:
    page = opened()
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Map"
    press("Tab")
    page.keyboard.type("file")
    press("ArrowDown")
    press("ArrowUp")
    press("Enter")
    assert "file" in page.locator(".search .note").inner_text()
    [before] = states(page, ".card h2")
    page.locator("canvas.map").focus()
    moved = []
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"):
        press(key)
        moved += states(page, ".card h2")
    assert set(moved) - {before}
    for key in ("+", "-", "0"):
        press(key)
    page.get_by_role("tab", name="Map").focus()
    press("ArrowRight")
    assert page.locator(".reading-view").is_visible()
    page.locator('.pill[tabindex="0"]').focus()
    press("ArrowRight")
    press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.column") == "1"
    state = page.evaluate("document.activeElement.dataset.state")
    assert page.locator(".one-state h3").inner_text().startswith(f"State {state}")
    page.locator(".token[tabindex='0']").focus()
    press("End")
    assert page.locator(".infill h3").inner_text().startswith("In place of “.”")
    page.get_by_role("tab", name="Reading").focus()
    press("End")
    assert page.locator(".blocks-view").is_visible()
    page.locator('.block-row[tabindex="0"]').focus()
    heading = page.locator(".block h2").inner_text()
    press("ArrowDown")
    assert page.locator(".block h2").inner_text() != heading


CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => parts(colour).map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(one.parentElement) : colour;
  };
  const shown = [...document.querySelectorAll(".vx *")].filter(
    (one) => one.checkVisibility() && one.tagName !== "SCRIPT" && !one.ownerSVGElement &&
      [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  return shown.map((one) => {
    const [ink, page] = [light(getComputedStyle(one).color), light(behind(one))];
    return [one.className + " " + one.textContent.slice(0, 20), (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(opened: Open, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(one) for one in background[4:-1].split(",")) < 384) == (scheme == "dark")
    for name in ("Map", "Reading", "Training", "Blocks"):
        view(page, name)
        contrast = page.evaluate(CONTRAST)
        assert len(contrast) > 10
        faint = [one for one in contrast if one[1] < 4.5]
        assert faint == []
    # The theme follows the system while the page is open.
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


def test_nothing_overflows_a_narrow_window(opened: Open) -> None:
    page = opened(viewport={"width": 380, "height": 700})
    for name in ("Map", "Reading", "Training", "Blocks"):
        view(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_pictures_are_saved_as_svg_and_png(opened: Open, tmp_path: Path, lm: vlhmm.LanguageModel) -> None:
    page = opened()
    for name, drawn in (("Map", "circle"), ("Reading", "g"), ("Training", "path")):
        view(page, name)
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.locator(f'[role="tabpanel"]:not([hidden]) .export button:has-text("{kind}")').click()
            file = tmp_path / saving.value.suggested_filename
            saving.value.save_as(file)
            if kind == "SVG":
                picture = ElementTree.parse(file).getroot()
                assert picture.tag == "{http://www.w3.org/2000/svg}svg"
                shapes = picture.findall(f".//{{http://www.w3.org/2000/svg}}{drawn}")
                assert len(shapes) >= (lm.hmm.num_states if name == "Map" else 2)
                assert "var(" not in file.read_text()
                width = float(picture.attrib["width"])
            else:
                content = file.read_bytes()
                assert content.startswith(b"\x89PNG")
                assert int.from_bytes(content[16:20], "big") == int(2 * width)


def test_the_policy_stops_requests_and_scripts_that_the_page_was_not_made_with(opened: Open) -> None:
    page = opened()
    blocked = page.evaluate(
        """async () => {
          const violations = [];
          document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
          await fetch("https://example.com/").catch(() => {});
          const image = new Image();
          image.src = "https://example.com/x.png";
          const script = document.createElement("script");
          try { script.textContent = "window.ran = true"; } catch (error) { violations.push(error.name); }
          document.body.append(script);
          await new Promise((resolve) => setTimeout(resolve, 50));
          return [violations, window.ran ?? false];
        }"""
    )
    assert {"connect-src", "img-src", "TypeError"} <= set(blocked[0])
    assert blocked[1] is False
    # They are in the console, as they should be; no request was made.
    assert page.seen.requests == []
    page.seen.errors.clear()


def test_a_typed_text_is_read_by_the_server(opened: Open, lm: vlhmm.LanguageModel, folder: Path) -> None:
    data = explorer_data(lm, folder=folder, texts=["the file reads the name ."], max_states=10)
    html, asked = explorer_page(data, live="/analyze"), []

    def serve(route: Any) -> None:
        if route.request.url == SITE:
            return route.fulfill(body=html, content_type="text/html; charset=utf-8")
        assert route.request.url == f"{SITE}analyze"
        question = route.request.post_data_json
        asked.append((question, route.request.headers.get("authorization")))
        if asked[-1][1] != "Bearer secret":
            return route.fulfill(status=401, json={"error": {"message": "an API key is needed"}})
        if "broken" in question["text"]:
            return route.fulfill(status=400, json={"error": {"message": "the text is broken"}})
        constraint = vlhmm.contains(question["constraint"]["contains"][0])
        return route.fulfill(json=as_json(analyse_text(lm, question["text"], constraint=constraint)))

    page = opened(address=SITE, route=serve)
    page.on("dialog", lambda dialog: dialog.accept("secret"))
    view(page, "Reading")
    page.get_by_label("Text", exact=True).fill("a list returns the value .")
    page.get_by_label("A phrase the text must contain").fill("value")
    page.get_by_role("button", name="Read", exact=True).click()
    page.locator(".constraint-point").first.wait_for()
    expected = lm.score("a list returns the value .")
    assert values(page, ".token") == [token.log_prob for token in expected.tokens]
    assert asked[-1] == ({"text": "a list returns the value .", "constraint": {"contains": ["value"]}}, "Bearer secret")
    page.get_by_label("Text", exact=True).fill("broken")
    page.keyboard.press("Enter")
    page.get_by_text("the text is broken").wait_for()
    assert page.locator(".token").count() == 6
    # The browser itself notes that two answers were refusals.
    assert [error for error in page.seen.errors if "Failed to load resource" not in error] == []
    page.seen.errors.clear()


def test_a_page_of_the_most_used_states_says_how_many_there_are(
    opened: Open, lm: vlhmm.LanguageModel, tmp_path: Path
) -> None:
    # No training run, no corpus: a text drawn from the model; and no texts to read.
    data = explorer_data(lm, texts=[], max_states=3)
    file = tmp_path / "few.html"
    file.write_text(explorer_page(data), encoding="utf-8")
    page = opened(address=file.as_uri())
    assert "The 3 most used of 24 states" in page.locator("figcaption").inner_text()
    assert "drawn from the model" in page.locator("figcaption").inner_text()
    page.fill("input[type=search]", "zzz")
    assert "No word" in page.locator(".search .note").inner_text()
    view(page, "Reading")
    assert "No text was analysed" in page.locator(".reading-view").inner_text()
    view(page, "Training")
    assert "no log of a training run" in page.locator(".training-view").inner_text()


def test_tokens_are_shown_as_people_read_them(opened: Open, tmp_path: Path) -> None:
    """Those of bytes as in the tables of the command line, but without the space before them."""
    tokenizer = byte_tokenizer()
    lm = vlhmm.LanguageModel(vlhmm.HMM.random(4, tokenizer.vocab_size), tokenizer)
    text = "M\u00e1 t\u2019\u4e2d"
    write_page(explorer_data(lm, texts=[text], max_tokens=200), tmp_path / "page.html")
    page = opened(address=(tmp_path / "page.html").as_uri())
    view(page, "Reading")
    shown = page.locator(".token > span").all_inner_texts()
    expected = [tokenizer.shown(tokenizer.token(one)) for one in tokenizer.encode(text)]
    assert [token.strip() for token in shown] == [name.replace("\u2423", "") for name in expected]
    assert expected[:4] == ["M", "\u00e1", "\u2423t", "<0xE2>"]
