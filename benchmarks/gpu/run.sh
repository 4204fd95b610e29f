#!/usr/bin/env bash
# What Ostler does with a real NVIDIA GPU, on a machine that needs no network:
#
#   benchmarks/gpu/wheels.sh 3.12 wheels           # somewhere with a network: for that machine's version of Python
#   benchmarks/gpu/run.sh wheels [REPORT_FOLDER]   # there; $PYTHON (python3 if unset) must have PyTorch
#
# Leaves report.json and report.md in the folder, which is benchmarks/gpu if none is named. Exit code 1: a promise was broken.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
wheels=${1:?usage: run.sh WHEELS [REPORT_FOLDER]}
report=${2:-$here}
python=${PYTHON:-python3}
venv=$(mktemp -d)/venv
trap 'rm -rf "$(dirname "$venv")"' EXIT

# Without pip of its own: Debian's python3 may lack ensurepip. Whoever has PyTorch can be asked to install beside it.
"$python" -m venv --without-pip "$venv"
# The environment that has PyTorch may be a virtual one itself; its packages are named by a path, behind our own.
"$python" -c 'import site, sysconfig; print("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])))' \
  > "$venv/lib/$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')/site-packages/behind.pth"
for wheel in "$wheels"/*.whl; do
  "$venv/bin/python" -m zipfile -e "$wheel" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
done
export PYTHONPATH="$here/../../src:$here/../.."
exec "$venv/bin/python" -m benchmarks.gpu --report "$report"
