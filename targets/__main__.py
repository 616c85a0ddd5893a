"""`python -m torchtpu.targets`: which targets work here."""

import sys

from torchtpu.cli.targets import main

sys.exit(main())
