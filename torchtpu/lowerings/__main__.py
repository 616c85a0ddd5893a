"""`python -m torchtpu.lowerings`: how each aten overload is computed."""

import sys

from torchtpu.cli.lowerings import main

sys.exit(main())
