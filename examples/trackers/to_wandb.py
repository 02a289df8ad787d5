"""Weights & Biases: log.command: "python3 examples/trackers/to_wandb.py" (pip install wandb)."""

import wandb

from record import follow, scalars

run = wandb.init(project="shoal")
for event in follow():
    if event["event"] == "step":
        run.log(scalars(event), step=event["step"])
    else:
        run.summary[event["event"]] = event.get("message") or event["step"]
run.finish()
