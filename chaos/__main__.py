"""Real faults on real processes: `python -m chaos [FAULT...] [--seed N] [--scale X] [--kills N]`.

Each fault has a fleet of its own under load; at the end the hub's word is compared with what the tasks wrote
themselves. The report says what was tried and what held. The exit code is 1 if a promise was broken.
"""

import argparse
import logging
import random
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from chaos import cuts, disks, floods, kills, pair, pauses, report
from chaos.disks import NoMounts
from chaos.judge import SHOWN
from chaos.pair import NoServer
from chaos.report import Campaign
from chaos.trial import Fault, Ground, Trial
from chaos.wire import NoNamespaces

FAULTS: dict[str, Fault] = {
    "kills": kills.hub_and_workers,
    "supervisors": kills.supervisors,
    "hub-paused": pauses.hub,
    "worker-paused": pauses.worker,
    "supervisor-paused": pauses.supervisor,
    "machine-paused": pauses.machine,
    "cuts": cuts.cuts,
    "slow": cuts.slow,
    "half-open": cuts.half_open,
    "hub-disk": disks.hub,
    "worker-disk": disks.worker,
    "printing": floods.printing,
    "deaf": floods.deaf,
    "connects": floods.connects,
    "leaders": pair.leaders,
}


def run(name: str, seed: int, options: argparse.Namespace) -> Trial:
    fault = FAULTS[name]
    about = " ".join((fault.__doc__ or "").split())
    trial = Trial(name, about, seed, at=report.now())
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-", dir=options.folder))
    begun = time.monotonic()

    def tell(what: str) -> None:
        print(f"  {time.monotonic() - begun:5.0f} s  {what}", flush=True)

    print(f"{name}: {about}", flush=True)
    try:
        fault(Ground(folder, seed, options.scale, options.kills, tell), trial)
    except (NoNamespaces, NoMounts, NoServer) as error:
        trial.skipped = f"{error}" or "no network namespaces here"
    except Exception as error:
        trial.broke = f"{type(error).__name__}: {str(error)[:1000]}"
        traceback.print_exc()
    trial.seconds = time.monotonic() - begun
    for promise in trial.promises:
        for one in promise.broken[:SHOWN]:
            tell(f"BROKEN: {promise.text}: {one}")
    if trial.sound and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        tell(f"what it left is in {folder}")
    tell(f"{report.verdict(trial)}; tried {trial.tried}")
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; all if none is named")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(2**32),
        help="what the draws of the first come from; of the next, one more",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="how often each is tried, beside the usual")
    parser.add_argument("--kills", type=int, default=0, help="of the hub, and as many of workers")
    parser.add_argument("--report", type=Path, default=Path(__file__).parent, help="the folder of the report")
    parser.add_argument("--add", action="store_true", help="to what the report has already")
    parser.add_argument("--folder", type=Path, default=None, help="where the fleets are; where temporary files are")
    parser.add_argument("--keep", action="store_true", help="keep the fleets' files though everything held")
    options = parser.parse_args()
    unknown = [name for name in options.faults if name not in FAULTS]
    if unknown:
        parser.error(f"there is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    logging.getLogger("ostler.client").setLevel(logging.ERROR)
    campaign: Campaign = report.begun(shlex.join(["python", "-m", "chaos", *sys.argv[1:]]))
    if options.add:
        campaign.trials += report.earlier(options.report)
    for number, name in enumerate(options.faults or FAULTS):
        campaign.trials.append(run(name, options.seed + number, options))
        page = report.write(campaign, options.report)
    print(f"\n{'sound' if campaign.sound else 'NOT SOUND'}: {page}")
    return 0 if campaign.sound else 1


if __name__ == "__main__":
    sys.exit(main())
