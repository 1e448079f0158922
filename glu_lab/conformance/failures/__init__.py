"""The failure lab: 42 ways to get a Transformer's MLP wrong, planted on purpose and found.

A row of `TABLE` says what goes wrong, why, what finds it and what to do instead. A built row plants
its faults beside clean twins; `run` holds both against the product's own check.
"""

from glu_lab.conformance.failures.checks import CHECKS
from glu_lab.conformance.failures.document import markdown, results_markdown
from glu_lab.conformance.failures.lab import Result, all_good, choose, run, summary
from glu_lab.conformance.failures.table import GROUPS, TABLE

__all__ = [
    "CHECKS",
    "GROUPS",
    "TABLE",
    "Result",
    "all_good",
    "choose",
    "markdown",
    "results_markdown",
    "run",
    "summary",
]
