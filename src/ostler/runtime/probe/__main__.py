"""One hardware probe in a process of its own: `python -m ostler.runtime.probe nvidia` prints one JSON document.

`usage` in place of a backend answers again and again: see usage.py.
"""

import sys

import msgspec

from ostler.runtime.probe import metal, nvidia, rocm, usage, vulkan

PROBES = {"nvidia": nvidia.probe, "rocm": rocm.probe, "metal": metal.probe, "vulkan": vulkan.probe}


def main(argv: list[str]) -> int:
    if argv == ["usage"]:
        return usage.serve()
    if len(argv) != 1 or argv[0] not in PROBES:
        print(f"give one of {', '.join(PROBES)}", file=sys.stderr)
        return 2
    found = PROBES[argv[0]]()
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
