"""`python -m experiments list | show | run | claims`: the tables of the papers."""

import sys

from experiments.cli import commands
from vlhmm.cli import main

if __name__ == "__main__":
    sys.exit(main(commands(), "python -m experiments"))
