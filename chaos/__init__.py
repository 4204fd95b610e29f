"""Real faults on real processes: `python -m chaos`, or `make chaos`."""
