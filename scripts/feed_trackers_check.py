#!/usr/bin/env python3
"""Compares what a tracker kept of a resumed run with the run's record (scripts/feed-trackers.sh).

feed_trackers_check.py wandb|mlflow METRICS_JSONL
"""

import glob
import json
import os
import struct
import sys


def wandb_records(path):
    """W&B's records of an offline run: LevelDB's log format behind seven bytes."""
    from wandb.proto import wandb_internal_pb2

    with open(path, "rb") as file:
        data = file.read()
    at, record = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            parsed = wandb_internal_pb2.Record()
            parsed.ParseFromString(record)
            yield parsed
            record = b""


def kept_by_wandb():
    """The losses by step of the run that was made last."""
    pattern = os.environ["WANDB_DIR"] + "/wandb/offline-run-*/*.wandb"
    path = max(glob.glob(pattern), key=os.path.getmtime)
    losses = []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
            losses.append((row["step"], row["loss"]))
    return losses


def kept_by_mlflow():
    """The losses by step of the run that was made last."""
    import mlflow

    client = mlflow.MlflowClient()
    run = client.search_runs(["0"], order_by=["start_time DESC"])[0]
    assert run.info.status == "FINISHED", run.info.status
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")]


def main(tracker, path):
    losses = {}
    with open(path, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["event"] == "step":
                losses[line["step"]] = line["loss"]
    kept = kept_by_wandb() if tracker == "wandb" else kept_by_mlflow()
    assert sorted(kept) == sorted(losses.items()), (kept, losses)
    print(f"{tracker} has all {len(kept)} steps, each once")


if __name__ == "__main__":
    main(*sys.argv[1:])
