"""What the lab's reports may not claim, as rules on their sentences.

The lab computes functions and counts operations. From that follows nothing about where a model
keeps its knowledge, no routing where a Spec has none, and no speed: seconds are measured, on a
machine that is named. A rule is a pattern, so that it finds claims made in the field's usual words
and no others.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Report:
    """A text that the lab makes.

    Attributes:
        name: which.
        text: in full; Markdown or a terminal's.
        dense: whether every FFN that it is about is one dense function, without experts.
        ledger: a number as printed → a pattern that its block must contain: what it counts.
    """

    name: str
    text: str
    dense: bool = True
    ledger: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def seems_right(self) -> bool:
        """It has words and numbers, and no cell says that one is missing."""
        return bool(re.search(r"\w", self.text)) and not re.search(r"\b(nan|None)\b", self.text)


class Claim(NamedTuple):
    """A sentence that may not stand there.

    Attributes:
        row: the failure that it is.
        why: what is wrong with it.
        sentence: as it stands.
    """

    row: int
    why: str
    sentence: str


class Rule(NamedTuple):
    """One kind of claim.

    Attributes:
        row: the failure that it is.
        why: what is wrong with it.
        says: finds it in a sentence.
        unless: takes the finding back.
        dense_only: whether it is wrong of dense FFNs alone.
    """

    row: int
    why: str
    says: re.Pattern[str]
    unless: re.Pattern[str] | None = None
    dense_only: bool = False


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b", re.IGNORECASE)


_PART = (
    r"(?:neurons?|channels?|keys?|values?|rows?|columns?|weights?|projections?|FFNs?|MLPs?"
    r"|layers?)"
)
_KNOWN = r"(?:facts?|knowledge|memor(?:y|ies)|concepts?|entit(?:y|ies))"
_KEEPS = (
    r"(?:stor(?:es?|ed|ing)|holds?|contains?|memori[sz]\w+|remembers?|knows?|retrieves?"
    r"|recalls?)"
)
_SPEED = r"(?:faster|slower|quicker|speed-?ups?|cheaper to run|latency|throughput)"
_BOUND = r"(?:memory|compute|bandwidth)[- ]bound"
_GAIN = r"(?:sav\w+|halv\w+|cuts?|cheaper|less|fewer|lower|reduc\w+|smaller|better|wins?)"
_MODEL = r"(?:(?:whole|entire|full) (?:model|network|transformer)|end[- ]to[- ]end)"
_HARDWARE = r"(?:[AHBV]\d{2,3}0?0?s?|TPUs?|GPUs?|accelerators?|hardware)"

RULES: tuple[Rule, ...] = (
    Rule(
        20,
        "storage of facts, where a product of projections was computed",
        _words(
            rf"{_PART}\b[^.]*\b{_KEEPS}\b[^.]*\b{_KNOWN}",
            rf"{_KNOWN}\b[^.]*\b(?:is|are) (?:stored|kept|held|located)\b[^.]*\b{_PART}",
            rf"{_PART}\b[^.]*\b(?:is|are) (?:an? |the )?(?:[\w’']+ )?(?:key[-–]value )?"
            r"(?:memor(?:y|ies)|database)(?!-)",
        ),
    ),
    Rule(
        21,
        "experts or routing of a dense FFN, which applies every channel to every row",
        _words(r"experts?", r"rout(?:e|es|er|ers|ed|ing)", r"mixture[- ]of[- ]experts", r"MoE"),
        _words(r"not part of the FFN", r"no (?:experts?|router)"),
        dense_only=True,
    ),
    Rule(
        22,
        "a speed, where operations were counted and no time was measured",
        _words(_SPEED, _BOUND),
        _words(r"measured", r"not (?:known|comparable)"),
    ),
    Rule(
        22,
        "the whole model's gain out of the ledger of one FFN",
        _words(rf"{_MODEL}\b[^.]*\b{_GAIN}", rf"{_GAIN}\b[^.]*\b{_MODEL}"),
    ),
    Rule(
        22,
        "a gain on hardware out of a count of operations",
        _words(rf"{_HARDWARE}\b[^.]*\b{_GAIN}", rf"{_GAIN}\b[^.]*\b{_HARDWARE}"),
        _words(r"measured", r"not known"),
    ),
)

#: Units of a ledger; a block with a number of them, or a table of them, says of what and per what.
_UNIT = _words(r"MACs?", r"multiply-accumulates?", r"[MGT]?FLOPs?", r"pointwise operations")
_COUNT = re.compile(r"[|│┃]|\d\s" + _UNIT.pattern, re.IGNORECASE)
_PER = _words(r"tokens?", r"examples?", r"steps?")
_OF = _words(r"FFNs?", r"layers?", r"models?", r"attention", r"device", r"example")

#: Code is quoted, not said: names of tensors and options.
_CODE = re.compile(r"`[^`\n]*`")
#: Where a sentence ends: at its stop, at the side of a cell, before the next item of a list.
_ENDS = re.compile(r"(?<=[.!?])\s+|\s*[|│┃]\s*|\n(?=[*-] )")


def scan(report: Report) -> list[Claim]:
    """The claims of a report that may not be made, in order."""
    found = []
    for block in re.split(r"\n\s*\n", _CODE.sub("…", report.text)):
        flat = " ".join(block.split())
        for sentence in filter(None, (" ".join(part.split()) for part in _ENDS.split(block))):
            found += [Claim(r.row, r.why, sentence) for r in RULES if _breaks(r, sentence, report)]
        counts = _UNIT.search(flat) and _COUNT.search(flat)
        if counts and not (_PER.search(flat) and _OF.search(flat)):
            found.append(Claim(22, "a count without of what and per what", _around(flat, _UNIT)))
        for number, label in report.ledger.items():
            printed = re.compile(rf"(?<![\d,.]){re.escape(number)}(?![\d,])")
            if printed.search(flat) and not re.search(label, flat):
                why = f"{number} is in the ledger of one FFN, and is not said to be"
                found.append(Claim(22, why, _around(flat, printed)))
    return found


def _breaks(rule: Rule, sentence: str, report: Report) -> bool:
    if rule.dense_only and not report.dense:
        return False
    taken_back = rule.unless is not None and rule.unless.search(sentence)
    return bool(rule.says.search(sentence)) and not taken_back


def _around(text: str, pattern: re.Pattern[str]) -> str:
    """The words around a match."""
    match = pattern.search(text)
    assert match is not None
    return text[max(0, match.start() - 40) : match.end() + 40].strip()
