"""The viewer's page in a browser: opened, played, a slider moved, the picture looked at.

Needs Chromium and its driver (Debian: chromium, chromium-driver), and Selenium.
"""

import io
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import mujoco
import numpy as np
import pytest

import mjtorch

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
pytestmark = pytest.mark.slow

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--window-size=1000,700",
)
# A red ball that falls along a rail, and can be lifted.
XML = """
<mujoco>
  <statistic center="0 0 .5" extent="1.5"/>
  <worldbody>
    <geom type="plane" size="0 0 1" rgba=".9 .9 .9 1"/>
    <body pos="0 0 .5"><joint name="up" type="slide" axis="0 0 1"/><geom size=".2" mass="1" rgba="1 0 0 1"/></body>
  </worldbody>
  <actuator><motor name="lift" joint="up" ctrlrange="0 20"/></actuator>
</mujoco>
"""
PATIENCE = 40.0  # [s]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A headless one."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(option)
    made = webdriver.Chrome(options=options, service=webdriver.chrome.service.Service(driver))
    yield made
    made.quit()


def until(what: Callable[[], Any]) -> Any:
    """What it returns once that is true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.3)
    raise AssertionError("it took too long")


def red(browser: Any) -> tuple[float, float] | None:
    """Where the ball is on the screen, row and column; None if it is not there."""
    picture = imageio.imread(io.BytesIO(browser.get_screenshot_as_png()))[..., :3].astype(int)
    picture[:, int(0.66 * picture.shape[1]) :] = 0  # the panel
    picture[:, : int(0.32 * picture.shape[1])] = 0  # axes and notes
    places = np.argwhere((picture[..., 0] > 90) & (picture[..., 0] > 2.5 * picture[..., 1:].max(-1)))
    return (float(places[:, 0].mean()), float(places[:, 1].mean())) if len(places) > 50 else None


def still(browser: Any) -> tuple[float, float] | None:
    """Where the ball is, if it stays there."""
    before = red(browser)
    time.sleep(1.0)
    return before if before == red(browser) else None


def button(browser: Any, label: str) -> Any:
    return next(b for b in browser.find_elements("tag name", "button") if b.text == label)


def test_a_page_is_opened_played_and_steered(browser: Any) -> None:
    mj_model = mujoco.MjModel.from_xml_string(XML)
    with mjtorch.view(mj_model) as viewer:
        browser.get(viewer.url)
        until(lambda: "t = 0.00 s, paused" in browser.find_element("tag name", "body").text)
        begin = until(lambda: still(browser))
        button(browser, "Play").click()
        until(lambda: button(browser, "Pause"))
        fallen = until(lambda: (now := red(browser)) is not None and now[0] > begin[0] + 10 and now)
        # the slider "lift": twice the weight, in its box
        box = browser.find_elements("css selector", "input")[-1]
        assert viewer._sliders[0].value == 0
        box.click()
        box.send_keys("\ue009a\ue000")  # all of it
        box.send_keys("19.5\t")
        until(lambda: viewer._sliders[0].value == 19.5)
        until(lambda: (now := red(browser)) is None or now[0] < fallen[0] - 20)
        button(browser, "Pause").click()
        button(browser, "Reset").click()
        assert np.allclose(until(lambda: still(browser)), begin, atol=3), "not where it was"
        assert not viewer.error
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert not [entry for entry in severe if "favicon" not in entry["message"]]
