"""The lines of a run's record as they come, for `log.command` (docs/run-record.md)."""

import json
import os
import time

ENDS = ("done", "interrupted", "failed")


def follow(path=None, pause=0.5, ends=ENDS):
    """Yields each event of the record until the run ends; skips those of earlier lives."""
    path = path or os.environ["SHOAL_RECORD"]
    while not os.path.exists(path):
        time.sleep(pause)
    with open(path, encoding="utf-8") as record:
        text = ""
        lines = []
        while True:
            piece = record.readline()
            text += piece
            if not text.endswith("\n"):
                if lines and lines[-1]["event"] in ends:
                    return
                time.sleep(pause)
                continue
            lines.append(json.loads(text))
            text = ""
            yield lines[-1]
            lines = lines[-1:]


def scalars(event):
    """The numbers of a step, by name."""
    return {
        key: value
        for key, value in event.items()
        if isinstance(value, (int, float)) and key not in ("step", "time")
    }
