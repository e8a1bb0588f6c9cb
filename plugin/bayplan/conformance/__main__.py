"""What ``python -m bayplan.conformance`` runs."""

import sys

from bayplan.conformance.vectors import main

if __name__ == "__main__":
    sys.exit(main())
