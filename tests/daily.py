"""Which part of what is too long for a day a run takes."""

from __future__ import annotations

import datetime
import os

# The number of the day, which whoever takes one of N parts takes modulo N.
PART = int(os.environ.get("TORCHTPU_TEST_PART", datetime.date.today().toordinal()))
ALL = os.environ.get("TORCHTPU_TEST_ALL") == "1"
