"""The status page: one document that shows how a worker does, live.

document   index.html with page.css and page.js in it, and the policy that lets nothing else in
feed       one sample a second, made once, for all who watch
pictures   what a stream asked for last, as pictures, on demand
side       the routes
"""

from __future__ import annotations

from feeder.worker.page.pictures import Pictures
from feeder.worker.page.side import Page

__all__ = ["Page", "Pictures"]
