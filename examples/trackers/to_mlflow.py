"""MLflow: log.command: "python3 examples/trackers/to_mlflow.py" (pip install mlflow)."""

import mlflow

from record import ENDS, follow, scalars, summary

mlflow.start_run()
end = None
for event in follow():
    if event["event"] == "step":
        time_ms = round(1000 * event["time"])
        mlflow.log_metrics(scalars(event), step=event["step"], timestamp=time_ms)
    else:
        mlflow.set_tag(event["event"], summary(event))
    end = ENDS.get(event["event"])
mlflow.end_run(end)
