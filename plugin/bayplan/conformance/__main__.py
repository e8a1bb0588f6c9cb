"""What ``python -m bayplan.conformance`` runs."""

import sys

from bayplan.conformance.vectors import main

sys.exit(main())
