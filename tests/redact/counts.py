"""Counts of what the rules find in labeled calls, for recall and precision."""

from collections import Counter
from collections.abc import Iterable

from galley.redact.find import find_spans
from tests.redact.corpus import Call

Counts = tuple[Counter[str], Counter[str], Counter[str], Counter[str]]


def covered(call: Call) -> Counts:
    """Count by kind: values, values fully covered, spans found, spans that overlap a value."""
    spans = find_spans(call.text)
    hidden = {at for span in spans for at in range(span.start, span.end)}
    whole = [
        span.kind
        for span in call.spans
        if all(at in hidden or call.text[at].isspace() for at in range(span.start, span.end))
    ]
    right = [
        found.kind
        for found in spans
        if any(found.start < span.end and span.start < found.end for span in call.spans)
    ]
    kinds = (span.kind for span in call.spans)
    return Counter(kinds), Counter(whole), Counter(span.kind for span in spans), Counter(right)


def covered_in_all(calls: Iterable[Call]) -> Counts:
    """Add up the counts of ``covered`` over several calls."""
    totals: Counts = (Counter(), Counter(), Counter(), Counter())
    for call in calls:
        for total, count in zip(totals, covered(call), strict=True):
            total.update(count)
    return totals
