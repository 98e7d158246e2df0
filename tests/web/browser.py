"""A browser without a screen. docs/dashboard.md."""

import os
import shutil
import tempfile
from pathlib import Path

from programs import WAIT, skip

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
except ImportError:
    skip("python3-selenium is not installed (scripts/setup web)")

for program in ("chromium", "chromedriver"):
    if shutil.which(program) is None:
        skip(f"{program} is not installed (scripts/setup web)")


class Browser:
    """Chromium with a profile of its own; ends with the block."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="fabric-web-")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--no-first-run", "--disable-extensions", "--disable-background-networking",
                     f"--user-data-dir={self.profile}"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
        self.driver.set_page_load_timeout(WAIT)
        self.driver.set_script_timeout(WAIT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def size(self, width, height=900):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})

    def scheme(self, name):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": name}]})

    def table(self, name):
        """The rows of a table: of each cell what programs read, or else its text."""
        return self.run(
            "return [...document.querySelectorAll('#' + arguments[0] + ' tbody tr')].map((row) =>"
            " [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent))", name)

    def console(self):
        """What the browser complained of since the last call."""
        return [line["message"] for line in self.driver.get_log("browser")
                if line["level"] in ("SEVERE", "WARNING")]

    def picture(self, name):
        """Kept where FABRIC_SCREENSHOTS says, for people to look at."""
        folder = os.environ.get("FABRIC_SCREENSHOTS")
        if folder:
            height = self.run("return Math.min(document.documentElement.scrollHeight, 4000)")
            width = self.run("return window.innerWidth")
            self.size(width, height)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))
