"""The page's frame in Chromium: the key, tabs, light and dark, and its accessibility."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.page.browser import Browser
from tests.page.conftest import KEY
from tests.page.reports import PAGES
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("page")

AXE = "axe-core@4.10.3"
PANELS = ["chat", "transcript", "voice", "curves", "memory", "reference"]


def test_the_page_prompts_for_a_key_and_keeps_it_in_the_tab(
    browser: Browser, served: Server
) -> None:
    browser.open(served)
    browser.until(browser.find("key-dialog").is_displayed)
    assert "API key required" in browser.text("key-reason")
    browser.find("key-input").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: "Incorrect API key" in browser.text("key-reason"))
    browser.find("key-input").send_keys(KEY, Keys.ENTER)
    browser.until(browser.find("chat-send").is_enabled)
    assert not browser.find("key-dialog").is_displayed()
    assert browser.run("return Object.values(sessionStorage)") == [KEY]
    assert KEY not in str(browser.run("return [Object.values(localStorage), document.cookie]"))
    browser.driver.refresh()
    browser.until(browser.find("chat-send").is_enabled)
    browser.find("forget").click()
    browser.until(browser.find("key-dialog").is_displayed)
    assert browser.run("return sessionStorage.length") == 0


def test_tabs_follow_the_keyboard_and_the_address(signed_in: Browser) -> None:
    signed_in.find("tab-chat").click()
    signed_in.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert signed_in.driver.switch_to.active_element.get_attribute("id") == "tab-transcript"
    signed_in.until(signed_in.find("panel-transcript").is_displayed)
    signed_in.driver.switch_to.active_element.send_keys(Keys.END)
    signed_in.until(signed_in.find("panel-reference").is_displayed)
    assert [
        panel.get_attribute("id")
        for panel in signed_in.all("[role=tabpanel]")
        if panel.is_displayed()
    ] == ["panel-reference"]
    signed_in.driver.back()
    signed_in.until(signed_in.find("panel-transcript").is_displayed)


def test_the_reference_is_that_of_docs(signed_in: Browser) -> None:
    signed_in.show("reference")
    signed_in.until(lambda: "/v1/chat/completions" in signed_in.text("reference"))


@pytest.mark.parametrize("prefers", ["light", "dark"])
def test_light_and_dark(signed_in: Browser, prefers: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": prefers}]}
    signed_in.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    switch = signed_in.find("theme")
    dark = prefers == "dark"
    signed_in.until(lambda: switch.get_attribute("aria-checked") == str(dark).lower())
    assert (brightness(signed_in) < 128) == dark
    switch.click()
    assert (brightness(signed_in) < 128) != dark
    signed_in.driver.refresh()
    assert (brightness(signed_in) < 128) != dark
    signed_in.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def brightness(browser: Browser) -> float:
    """Return the lightness of the background, 0 to 255."""
    color = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (float(part) for part in color.removeprefix("rgb(").rstrip(")").split(","))
    return (red + green + blue) / 3


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the source of axe, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("no npm to fetch axe-core with")
    folder = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot fetch {AXE}: {done.stderr[-200:]}")
    return Path(folder, "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(signed_in: Browser, axe: str, theme: str) -> None:
    signed_in.run("document.documentElement.dataset.theme = arguments[0]", theme)
    signed_in.show("chat")
    signed_in.find("chat-input").send_keys("What is a KV cache?", Keys.ENTER)
    signed_in.until(lambda: "tokens/s" in signed_in.content(".receipt"))
    signed_in.run(axe)
    # Themes differ in colors alone.
    rules = None if theme == "light" else ["color-contrast"]
    for panel in PANELS[:-1]:
        signed_in.show(panel)
        signed_in.until(partial(signed_in.text, f"panel-{panel}"))
        check(signed_in, panel, rules)
    signed_in.run("document.getElementById('key-dialog').showModal()")
    check(signed_in, "key", rules)
    signed_in.run("document.getElementById('key-dialog').close()")
    signed_in.show("reference")
    signed_in.until(partial(signed_in.all, "#reference details"))
    check(signed_in, "reference", rules, exclude="#reference details:nth-of-type(n + 9)")


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_in_the_pages_of_commands(
    browser: Browser, axe: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / f"{name}.html"
    file.write_text(PAGES[name]())
    for width in (400, 1400):
        browser.driver.set_window_size(width, 900)
        browser.driver.get(file.as_uri())
        browser.run(axe)
        check(browser, f"{name}, {width} pixels wide")


def check(
    browser: Browser, where: str, rules: list[str] | None = None, exclude: str = "#none"
) -> None:
    """Check what is shown, except for elements that match ``exclude``, by some rules or by all."""
    # Nodes that pass, thousands in the reference, take axe and the driver seconds to write down.
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = browser.run_async(
        """
        const found = await axe.run({include: ["html"], exclude: [args[0]]}, args[1]);
        return {passes: found.passes.length, violations: found.violations};
        """,
        exclude,
        options,
    )
    assert found["passes"] > (0 if rules else 10)
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    violations = [(v["id"], [node["html"][:160] for node in v["nodes"]]) for v in serious]
    assert not violations, where


def test_nothing_is_loaded_from_elsewhere_and_nothing_breaks(
    browser: Browser, signed_in: Browser, served: Server
) -> None:
    for log in ("performance", "browser"):
        browser.logged(log)  # left by earlier tests
    signed_in.driver.refresh()
    signed_in.until(signed_in.find("chat-send").is_enabled)
    for panel in PANELS:
        signed_in.show(panel)
    events = [json.loads(entry["message"])["message"] for entry in browser.logged("performance")]
    urls = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    foreign = [url for url in urls if not url.startswith((served.url, "about:", "data:"))]
    assert {"main.js", "metrics"} <= {url.rsplit("/", 1)[1] for url in urls}
    assert foreign == []
    assert browser.complaints() == []


def test_a_narrow_window_scrolls_in_one_direction_alone(signed_in: Browser) -> None:
    signed_in.driver.set_window_size(420, 800)
    for panel in PANELS:
        signed_in.show(panel)
        wide = signed_in.run("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, panel
    signed_in.driver.set_window_size(1400, 900)
    assert signed_in.driver.find_element(By.TAG_NAME, "h1").is_displayed()
