"""Draws the page Mars: faults: lost workers and failed operands, and the recovery from them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from dask_marsched.dashboard.bars_pane import BarsPane
from dask_marsched.dashboard.pane import set_data, set_text
from dask_marsched.monitoring import tables
from dask_marsched.monitoring.html import element, joined
from dask_marsched.monitoring.palette import BLUE, ORANGE, RED, SKY
from dask_marsched.monitoring.tables import count

#: Results and tasks of a lost worker by their recovery: key, text, colour.
_KINDS = (
    ("adopted", "adopted by others", BLUE),
    ("lost", "lost", ORANGE),
    ("again", "computed again", RED),
    ("interrupted", "sent again", SKY),
)


class FaultsPane(BarsPane):
    """The last lost workers: results adopted and computed again, and the time it took."""

    name = "faults"
    title = "Operands and results, by lost worker"
    across = "operands or results"
    down = "time of the loss"
    bars = tuple((*kind, 0.18, 0.3 - 0.2 * i) for i, kind in enumerate(_KINDS))
    more = ("worker", "seconds")
    tips = (
        ("worker", "@worker"),
        *((text, f"@{key}{{0,0}}") for key, text, _ in _KINDS),
        ("recovered after", "@seconds"),
    )
    pixels = 60

    def show(self, observer: Any) -> str | None:
        """Show the last losses."""
        found = observer.faults()
        set_text(self.heading, _heading(found))
        last = found["last"]
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
            **{key: [event[key] for event in last] for key, _, _ in _KINDS},
        }
        set_data(self.source, data)
        title = element("b", "The last losses")
        set_text(self.table, joined([title, tables.losses(reversed(last), "time", _clock)]))
        return None


def _clock(time: float) -> str:
    return datetime.datetime.fromtimestamp(time).strftime("%H:%M:%S")


def _seconds(event: Mapping[str, Any]) -> str:
    return "not yet" if event["seconds"] is None else f"{event['seconds']:.1f} s"


def _heading(found: Mapping[str, Any]) -> str:
    facts = [
        f" {count(found['losses'], 'worker')} lost that held or ran something, "
        f"{count(found['recovered'])} recovered; "
        f"{count(found['results_adopted'], 'result')} adopted, "
        f"{count(found['computed_again'], 'operand')} computed again",
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
        f"{count(found[key], what)} {became}" for key, (what, became) in names.items() if found[key]
    ]
    if outages := found["outages"]:
        texts.append(_outages(outages))
    caught = sum(found["exceptions"].values())
    if caught:
        texts.append(f"{count(caught, 'exception')} in our own hooks (a defect: see status)")
    return texts


def _outages(found: list[dict[str, Any]]) -> str:
    last = found[-1]
    back = "it is not ready yet"
    if last["seconds"] is not None:
        back = (
            f"ready after {last['seconds']:.1f} s with {count(last['workers'], 'worker')}, "
            f"{count(last['held'], 'result')} and {count(last['running'])} running, "
            f"{count(last['missing'], 'worker')} missing, "
            f"{count(last['left'], 'operand')} left to compute"
        )
    times = f"{count(len(found), 'outage')} of the scheduler"
    return f"{times}, the last at {_clock(last['time'])}: {back}"


def _other_faults(found: Mapping[str, Any]) -> str | None:
    others = _others(found)
    if not others:
        return None
    causes = " The page of operands lists the causes." if found["fatal"] else ""
    return f"No worker was lost. {', '.join(others)}.{causes}"
