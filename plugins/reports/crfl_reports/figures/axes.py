"""What axes are called that several pages and figures have."""

from __future__ import annotations

RADIUS = {
    "feature": "size of the trigger, L2 norm in scaled inputs",
    "sample": "share of poisoned samples",
    "client": "number of malicious clients",
}
"""What a radius is, by the level of a certificate."""
