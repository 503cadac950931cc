"""Data quality: what is wrong with the records of a data set, and what is odd about them.

`check` reads and decodes every record and keeps a row of measures of each; `review` decides by those rows
alone.
"""

from feeder.quality.check import Checked, check
from feeder.quality.pictures import pictures
from feeder.quality.report import document, flagged
from feeder.quality.review import FINDINGS, Review, Thresholds, review
from feeder.quality.state import State

__all__ = [
    "FINDINGS",
    "Checked",
    "Review",
    "State",
    "Thresholds",
    "check",
    "document",
    "flagged",
    "pictures",
    "review",
]
