"""bench/ is no part of the installed package: tests of it import it from the checkout."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))
