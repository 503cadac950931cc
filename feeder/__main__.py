"""`python -m feeder` is `feeder`."""

from __future__ import annotations

import sys

from feeder.cli import main

sys.exit(main())
