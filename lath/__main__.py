"""`python -m lath` is the command `lath`."""

import sys

from lath.cli import main

sys.exit(main())
