"""Weights & Biases: log.command: "python3 examples/trackers/to_wandb.py" (pip install wandb)."""

import wandb

from record import ENDS, follow, scalars, summary

run = wandb.init(project="shoal")
# Its own count of steps only grows: it would ignore what a resume does again.
run.define_metric("*", step_metric="step")
end = None
for event in follow():
    if event["event"] == "step":
        run.log({"step": event["step"], **scalars(event)})
    else:
        run.summary[event["event"]] = summary(event)
    end = ENDS.get(event["event"])
run.finish(exit_code=int(end == "FAILED"))
