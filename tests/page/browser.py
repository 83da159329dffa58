"""A real Chromium showing the server's page."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.server.serving import Server

SECONDS = 60

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

T = TypeVar("T")


class Browser:
    """One window. ``microphone`` is a WAV file that it plays in a loop while the page records."""

    def __init__(self, *, microphone: Path | None = None, size: str = "1400,900") -> None:
        assert CHROMIUM
        assert DRIVER
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (
            "headless=new",
            "no-sandbox",
            "disable-dev-shm-usage",
            f"window-size={size}",
            "force-prefers-reduced-motion",
            "use-fake-ui-for-media-stream",
            "use-fake-device-for-media-stream",
            *([f"use-file-for-fake-audio-capture={microphone}"] if microphone else []),
        ):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(DRIVER))

    def close(self) -> None:
        """Close the browser."""
        self.driver.quit()

    def open(self, server: Server, panel: str = "chat") -> None:
        """Reload the page, without a key, and wait until it lists the models."""
        self.driver.get(f"{server.url}/#{panel}")
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.driver.get("about:blank")
        self.driver.get(f"{server.url}/#{panel}")
        self.until(lambda: self.text("state") == "ready")

    def find(self, id: str) -> WebElement:
        """Return the element with an id."""
        return self.driver.find_element(By.ID, id)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that match a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, id: str) -> str:
        """Return the visible text of the element with an id."""
        return self.find(id).text

    def content(self, selector: str) -> str:
        """Return all text, white space included, of the first element that matches a CSS selector."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def show(self, panel: str) -> None:
        """Click a tab."""
        self.find(f"tab-{panel}").click()
        self.until(self.find(f"panel-{panel}").is_displayed)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a piece of JavaScript."""
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Return the result of an async function's body; an error in it fails the test."""
        self.driver.set_script_timeout(SECONDS)
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...args) => {{ {script} }})(...arguments).then("
            "value => done({value}), error => done({error: String(error.stack)}))"
        )
        result = self.driver.execute_async_script(wrapped, *arguments)
        assert "error" not in result, result["error"]
        return result.get("value")

    def until(self, condition: Callable[[], T], seconds: float = SECONDS) -> T:
        """Wait for the first true value and return it."""
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """Return the new entries of a log of Chromium's: "browser" or "performance"."""
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def complaints(self) -> list[str]:
        """Return the new messages on the browser's console, except for refused requests."""
        return [
            entry["message"]
            for entry in self.logged("browser")
            if entry["level"] == "SEVERE" and " 401 " not in entry["message"]
        ]
