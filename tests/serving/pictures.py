"""Take the pictures of the page for the docs: python tests/serving/pictures.py MODEL [TEXT]"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from servers import serving
from test_page import chromium

from unmask.model.checkpoint import load

TEXT = "Once upon a time, there was a little [5]. One day, [24]. The end."
FOLDER = Path(__file__).parents[2] / "docs" / "pictures"


def take(model: str, text: str = TEXT) -> None:
    with serving(load(model), name=Path(model).name) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for scheme, at in (("light", 0.55), ("dark", 1.0)):
            page = browser.new_page(viewport={"width": 1000, "height": 760}, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("#sampler option", state="attached")
            for field, value in (("#text", text), ("#n", "2"), ("#seed", "7")):
                page.fill(field, value)
            page.click("#go")
            page.wait_for_selector('.reel button:text-is("Again")', timeout=120_000)
            slider = page.locator(".reel input")
            slider.fill(str(round(at * int(slider.get_attribute("max")))))
            if at == 1.0:
                for place, clicks in ((8, 1), (9, 1), (14, 2), (15, 2)):
                    for _ in range(clicks):
                        page.locator(".candidate").first.locator(".token.drawn, .token.mask").nth(place).click()
            page.mouse.move(0, 0)
            page.wait_for_timeout(500)  # colours fade in
            page.screenshot(path=FOLDER / f"page-{scheme}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    take(*sys.argv[1:3])
