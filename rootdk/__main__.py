"""``python -m rootdk`` is the command line."""

import sys

from rootdk.cli import main

if __name__ == "__main__":
    sys.exit(main())
