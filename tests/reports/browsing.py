"""What tests do with a page in a browser: read its numbers, and look whether its text can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opened = Callable[..., "Page"]
CONTRAST = 4.5
"""WCAG 2.2, level AA, for text of ordinary size."""

LUMINANCE = """
() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((v) => linear(v / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let here = element; here; here = here.parentElement) {
      const found = parse(getComputedStyle(here).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("script, .hidden, .skip, option")) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([ratio, element.tagName, element.className, element.textContent.trim().slice(0, 40)]);
  }
  return found;
}
"""


def numbers(page: Page, figure: str) -> list[list[str]]:
    """The table below a figure."""
    page.evaluate(f"document.querySelector('{figure} details.numbers').open = true")
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{figure} details.numbers tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def unreadable(page: Page) -> list[list[Any]]:
    """Texts that do not stand out from what is behind them, with their contrast."""
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found: list[list[Any]] = page.evaluate(LUMINANCE)
    assert len(found) > 100
    return [one for one in found if one[0] < CONTRAST]


def is_elsewhere(address: str) -> bool:
    """Whether an address is not in the page itself."""
    return not address.startswith(("file:", "data:"))
