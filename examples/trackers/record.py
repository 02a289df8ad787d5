"""The lines of a run's record as they come, for `log.command` (docs/run-record.md)."""

import json
import os
import time

ENDS = ("done", "interrupted", "failed")


def follow(path=None, pause=0.5):
    """Yields each event of the record, those before a resume too, until the run ends."""
    path = path or os.environ["SHOAL_RECORD"]
    while not os.path.exists(path):
        time.sleep(pause)
    with open(path, encoding="utf-8") as record:
        text = ""
        last = None
        while True:
            piece = record.readline()
            text += piece
            if not text.endswith("\n"):
                if last in ENDS:
                    return
                time.sleep(pause)
                continue
            event = json.loads(text)
            last = event["event"]
            text = ""
            yield event


def scalars(event):
    """The numbers of a step, by name."""
    return {
        key: value
        for key, value in event.items()
        if isinstance(value, (int, float)) and key not in ("step", "time")
    }
