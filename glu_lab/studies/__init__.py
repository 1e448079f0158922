"""Studies: sets of runs under one contract, their records, statistics, tables and plots."""

from glu_lab.studies.axes import axis, chain, coupled, product, variants_matched, zip_
from glu_lab.studies.study import Member, Study, expand

__all__ = [
    "Member",
    "Study",
    "axis",
    "chain",
    "coupled",
    "expand",
    "product",
    "variants_matched",
    "zip_",
]
