"""`run.sh` calls this: every case over one hub and one worker, and a report of what was seen."""

import argparse
import datetime
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pynvml
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.fleet import Broken, Document, GpuFleet, gpu_fleet
from benchmarks.process_fleet import machine

LINES = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument(
        "--report", type=Path, default=Path(__file__).parent, help="the folder of report.json and report.md"
    )
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    pynvml.nvmlInit()
    # A socket's path is short: not below a long folder.
    with tempfile.TemporaryDirectory(prefix="ostler-gpu-") as folder, gpu_fleet(Path(folder)) as place:
        seen = {name: _tried(name, place) for name in options.only}
        for log in ("hub.out", "worker.out") if any("broken" in one for one in seen.values()) else ():
            print(f"--- {log}", *(Path(folder) / log).read_text().splitlines()[-LINES:], sep="\n")
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        **_device(),
        "seen": seen,
    }
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.report / "report.md").write_text(_page(report))
    return int(any("broken" in one for one in seen.values()))


def _tried(name: str, place: GpuFleet) -> Document:
    begun = time.monotonic()
    try:
        seen: Document = CASES[name](place)
    except Broken as error:
        seen = {"broken": str(error)}
    except Exception:
        seen = {"broken": traceback.format_exc()}
    seen["took_s"] = round(time.monotonic() - begun, 1)
    print(f"{name}: {json.dumps(seen)}", flush=True)
    return seen


def _device() -> Document:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    import torch

    return {
        "device": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _page(report: Document) -> str:
    """The report as people read it; written by this program alone."""
    text = "# On a real GPU\n\nWritten by `benchmarks/gpu/run.sh`. "
    text += f"{report['date']}: {report['device']}, driver {report['driver']}, PyTorch {report['torch']}, "
    text += f"Python {report['python']}; {report['machine']}.\n"
    for name, seen in report["seen"].items():
        text += f"\n## {name.capitalize()}: {'BROKEN' if 'broken' in seen else 'held'}\n{CASES[name].__doc__}\n\n"
        text += "".join(f"- {key.replace('_', ' ')}: {_shown(value)}\n" for key, value in seen.items())
    return text


def _shown(value: object) -> str:
    return value if isinstance(value, str) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    sys.exit(main())
