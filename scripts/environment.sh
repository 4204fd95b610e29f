#!/bin/sh
# Creates the virtual environment FOLDER and installs the packages of LOCK into it, with their hashes checked.
# Uses uv where it is installed (ten seconds), else pip (a minute). An environment that works is kept.
#
#     scripts/environment.sh FOLDER LOCK PYTHON
set -eu
folder=$1
lock=$2
python=$3
uv=${UV-$(command -v uv || true)}

fail() {
  echo "setup: $1" >&2
  shift
  for line in "$@"; do echo "       $line" >&2; done
  exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

create() {
  [ -n "$python" ] || fail "no Python 3.11 or newer was found." \
    "Install one, or name it: make setup PYTHON=/path/to/python"
  command -v "$python" >/dev/null || fail "there is no interpreter '$python'."
  is_new_enough "$python" || fail "$python is too old; Ostler needs Python 3.11 or newer."
  echo "setup: creating $folder with $("$python" --version)${uv:+ and uv}"
  if [ -n "$uv" ]; then
    # By its path: uv reads the mere name "python3" as any Python 3 that it finds.
    path=$("$python" -c 'import sys; print(sys.executable)')
    "$uv" venv --quiet --seed --clear --no-python-downloads --python "$path" "$folder" || fail \
      "uv could not create $folder." "To use pip instead: make setup UV="
  else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot create virtual environments (no ensurepip)." \
      "On Debian and Ubuntu: apt-get install python3-venv"
    "$python" -m venv --clear "$folder"
  fi
}

# An interrupted run leaves an environment without pip, and an old one may have an old Python: both are created again.
{ is_new_enough "$folder/bin/python" && "$folder/bin/python" -m pip --version >/dev/null 2>&1; } || create

# pip does not compile here: most modules are never imported, and Python compiles the others at their first import.
if [ -n "$uv" ]; then
  echo "setup: installing the packages of $lock with uv"
  "$uv" pip install --quiet --python "$folder/bin/python" --require-hashes -r "$lock" || fail "uv could not install." \
    "To use pip instead: make setup UV="
else
  echo "setup: installing the packages of $lock with pip"
  "$folder/bin/python" -m pip --disable-pip-version-check install -qq --no-compile --require-hashes -r "$lock" || fail \
    "pip could not install. It needs the network, and 1 GB of disk."
fi
