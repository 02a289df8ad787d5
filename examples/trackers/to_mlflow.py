"""MLflow: log.command: "python3 examples/trackers/to_mlflow.py" (pip install mlflow)."""

import mlflow

from record import follow, scalars

with mlflow.start_run():
    for event in follow():
        if event["event"] == "step":
            mlflow.log_metrics(scalars(event), step=event["step"])
        else:
            mlflow.set_tag(event["event"], event.get("message") or event["step"])
