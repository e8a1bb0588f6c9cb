"""What ``python -m conformance`` runs."""

import sys

from conformance.vectors import main

if __name__ == "__main__":
    sys.exit(main())
