"""Train a DFlash drafter for a frozen target, leaving on disk what a watcher needs to know.

The attempt directory receives `heartbeat.json`, `metrics.jsonl`, `environment.json`, and either `result.json`
or `error.json`; the run directory receives `checkpoints/` and, at the end, `export/`.
"""
