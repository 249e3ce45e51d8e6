"""Mars: faults. Lost workers and failed operands, and the recovery from them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from dask_marsched.dashboard.bars_pane import BarsPane
from dask_marsched.dashboard.pane import number_of, set_data, set_text
from dask_marsched.monitoring.html import Markup, element, joined, table
from dask_marsched.monitoring.palette import BLUE, ORANGE, RED, SKY

#: Results and tasks of a lost worker by their recovery: key, text, colour.
_KINDS = (
    ("adopted", "adopted by others", BLUE),
    ("lost", "lost", ORANGE),
    ("again", "computed again", RED),
    ("interrupted", "sent again", SKY),
)
_GROUPS = 3


class FaultsPane(BarsPane):
    """The last lost workers: results adopted and computed again, and the time it took."""

    name = "faults"
    title = "Operands and results, by lost worker"
    across = "operands or results"
    down = "time of the loss"
    bars = tuple((*kind, 0.18, 0.3 - 0.2 * i) for i, kind in enumerate(_KINDS))
    more = ("worker", "seconds")
    pixels = 60

    def __init__(self, scheduler: Any) -> None:
        tips = [("worker", "@worker"), *((text, f"@{key}{{0,0}}") for key, text, _ in _KINDS)]
        super().__init__(scheduler, [*tips, ("recovered after", "@seconds")])

    def show(self, observer: Any) -> str | None:
        """Show the last losses."""
        found = observer.faults()
        set_text(self.heading, _heading(found))
        last = found.get("last", [])
        if not last:
            return _other_faults(found) or (
                "Nothing has died or failed since the plugin was registered. Lost workers appear "
                "here, with their results that others adopt and those that are computed again."
            )
        labels = [f"{i + 1}. {_clock(event['time'])}" for i, event in enumerate(last)]
        self.fit(labels[::-1])
        data = {
            "label": labels,
            "worker": [event["worker"] for event in last],
            "seconds": [_seconds(event) for event in last],
            **{key: [event.get(key, 0) for event in last] for key, _, _ in _KINDS},
        }
        set_data(self.source, data)
        set_text(self.table, _table(labels, last))
        return None


def _clock(time: float) -> str:
    return datetime.datetime.fromtimestamp(time).strftime("%H:%M:%S")


def _seconds(event: Mapping[str, Any]) -> str:
    return "not yet" if event.get("seconds") is None else f"{event['seconds']:.1f} s"


def _heading(found: Mapping[str, Any]) -> str:
    facts = [
        f" {number_of(found.get('losses', 0), 'worker')} lost that held or ran something, "
        f"{number_of(found.get('recovered', 0))} recovered; "
        f"{number_of(found.get('results_adopted', 0), 'result')} adopted, "
        f"{number_of(found.get('computed_again', 0), 'operand')} computed again",
    ]
    facts += [f"; {text}" for text in _others(found)]
    return element("div", element("b", "Faults:"), *facts)


def _others(found: Mapping[str, Any]) -> list[str]:
    names = {
        "retried": ("failure", "tried again"),
        "fatal": ("operand", "failed for good"),
        "cancelled": ("operand", "cancelled"),
        "interrupted": ("operand", "interrupted"),
    }
    texts = [
        f"{number_of(found[key], what)} {became}"
        for key, (what, became) in names.items()
        if found.get(key)
    ]
    if outages := found.get("outages"):
        texts.append(_outages(outages))
    caught = sum(found["exceptions"].values())
    if caught:
        texts.append(f"{number_of(caught, 'exception')} in our own hooks (a defect: see status)")
    return texts


def _outages(found: list[dict[str, Any]]) -> str:
    last = found[-1]
    back = "it is not ready yet"
    if last["seconds"] is not None:
        back = (
            f"ready after {last['seconds']:.1f} s with {number_of(last['workers'], 'worker')}, "
            f"{number_of(last['held'], 'result')} and {number_of(last['running'])} running, "
            f"{number_of(last['missing'], 'worker')} missing, "
            f"{number_of(last['left'], 'operand')} left to compute"
        )
    times = f"{number_of(len(found), 'outage')} of the scheduler"
    return f"{times}, the last at {_clock(last['time'])}: {back}"


def _other_faults(found: Mapping[str, Any]) -> str | None:
    others = _others(found)
    if not others:
        return None
    causes = " The page of operands lists the causes." if found.get("fatal") else ""
    return f"No worker was lost. {', '.join(others)}.{causes}"


def _table(labels: list[str], last: list[dict[str, Any]]) -> Markup:
    rows = [
        (
            label,
            event["worker"],
            *(number_of(event.get(key, 0)) for key, _, _ in _KINDS),
            number_of(event.get("excess", 0)),
            _seconds(event),
            ", ".join(f"{name} {n}" for name, n in list(event["groups"].items())[:_GROUPS]),
        )
        for label, event in reversed(list(zip(labels, last, strict=True)))
    ]
    header = ("time", "worker", *(text for _, text, _ in _KINDS), "more than needed",
              "recovered after", "computed again, of")  # fmt: skip
    title = element("b", "The last losses")
    return joined([title, table(header, rows, range(2, 8))])
