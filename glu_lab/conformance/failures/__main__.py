"""Prints the page: ``python -m glu_lab.conformance.failures > docs/failures.md``."""

import sys

from glu_lab.conformance.failures.checks import CHECKS
from glu_lab.conformance.failures.document import markdown
from glu_lab.conformance.failures.table import GROUPS

sys.stdout.write(markdown(GROUPS, CHECKS))
