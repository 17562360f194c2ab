"""`python3 -m vlhmm`."""

import sys

from vlhmm.cli import main

sys.exit(main())
