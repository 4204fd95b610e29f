"""When something is expected: as a document, and in words."""

from datetime import datetime

from ostler.core.foresight.outlook import Expected
from ostler.hub.documents import Document, timestamp


def document(expected: Expected, wall: float) -> Document:
    """With moments instead of seconds."""
    found: Document = {"as_of": timestamp(wall), "runs": expected.runs}
    for name, one in (("start", expected.start), ("end", expected.end)):
        if one is not None:
            found[name] = {
                key: None if at is None else timestamp(wall + at)
                for key, at in (("low", one.low_s), ("likely", one.likely_s), ("high", one.high_s))
            }
    if expected.later_than_s is not None:
        found["later_than"] = timestamp(wall + expected.later_than_s)
    if expected.never:
        found["never"] = True
    return found


def in_words(expected: Document, wall: float) -> str:
    """'in about 12 min; in four of five cases between 5 min and 1 h from now'."""
    if expected.get("never"):
        return "never, as things are"
    if "later_than" in expected:
        return f"later than {_span(_at(expected['later_than']) - wall)} from now; a longer look says more"
    name = "start" if "start" in expected else "end"
    found = expected.get(name)
    if not found:
        return "not known"
    low, likely, high = (None if found[key] is None else _at(found[key]) - wall for key in ("low", "likely", "high"))
    verb = "" if name == "start" else "ends "
    about = f"{verb}in about {_span(likely)}" if likely is not None else f"{verb}later than can be foreseen"
    until = f"and {_span(high)} from now" if high is not None else "from now and later than can be foreseen"
    return f"{about}; in four of five cases between {_span(low or 0.0)} {until}"


def _at(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _span(seconds: float) -> str:
    for least, size, unit in ((172_800.0, 86_400.0, "d"), (7200.0, 3600.0, "h")):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120.0 else f"{max(0.0, seconds):.0f} s"
