#!/usr/bin/env bash
# The wheels that Ostler needs at run time, in the versions of requirements.lock: wheels.sh PYTHON_VERSION FOLDER
set -euo pipefail

version=${1:?usage: wheels.sh PYTHON_VERSION FOLDER}
folder=${2:?usage: wheels.sh PYTHON_VERSION FOLDER}
root=$(cd "$(dirname "$0")/../.." && pwd)
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT

grep -oE '^[a-z0-9._-]+==[^ ;]+' "$root/requirements.lock" > "$pins"
needs=$("$root/.venv/bin/python" -c 'import sys, tomllib
for need in tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"]: print(need.split(";")[0].strip())' "$root/pyproject.toml")
mkdir -p "$folder"
# PyTorch brings its own numpy.
echo "$needs" | grep -v '^numpy' | "$root/.venv/bin/python" -m pip download -q --disable-pip-version-check --only-binary :all: \
  --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -c "$pins" -d "$folder" -r /dev/stdin
du -sh "$folder"
