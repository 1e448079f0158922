"""Prints the page of all layouts: ``python -m glu_lab.layouts > docs/layouts.md``."""

import sys

from glu_lab.layouts.document import markdown
from glu_lab.layouts.lookup import LAYOUTS

sys.stdout.write(markdown(LAYOUTS))
