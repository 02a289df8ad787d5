"""The events of a run's record as they come, for `log.command` (docs/run-record.md)."""

import json
import os
import time

# What ends a run, and how trackers call it.
ENDS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def standing(events):
    """Leaves out steps that a later resume among the events did again."""
    kept = []
    for event in events:
        if event["event"] == "resume":
            kept = [old for old in kept if old["event"] != "step" or old["step"] <= event["step"]]
        kept.append(event)
    return kept


def follow(path=None, pause=0.5):
    """Yields each event of the record, those before a resume too, until the run ends."""
    path = path or os.environ["SHOAL_RECORD"]
    while not os.path.exists(path):
        time.sleep(pause)
    with open(path, encoding="utf-8") as record:
        text = ""
        last = None
        while True:
            *lines, text = (text + record.read()).split("\n")
            events = [json.loads(line) for line in lines]
            yield from standing(events)
            if events:
                last = events[-1]["event"]
            elif last in ENDS:
                return
            else:
                time.sleep(pause)


def scalars(event):
    """The numbers of a step, by name."""
    return {
        key: value
        for key, value in event.items()
        if isinstance(value, (int, float)) and key not in ("step", "time")
    }


def summary(event):
    """What an event that is not a step says."""
    keys = ("message", "error", "reason", "step", "lines")
    return next((event[key] for key in keys if key in event), "")
