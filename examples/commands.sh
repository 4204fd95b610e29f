#!/bin/sh
# Commands: run one and watch it, submit one and come back for it, fetch what it left.
#
#     sh examples/commands.sh
set -eu

# Waits, shows what it prints, ends with its exit code.
ostler run --name greeting -- echo "hello from the fleet"

# Prints the job's id and returns at once. There is no shell in between, so one is named.
id=$(ostler submit --name tables --cpus 0.5 --memory 64m -- sh -c 'seq 1 10 > $OSTLER_OUT/numbers')
ostler wait "$id"

# What it left in $OSTLER_OUT is its artifact.
folder=$(mktemp -d)
ostler artifacts get "$id" --extract --to "$folder/tables" >/dev/null
echo "it left $(wc -l <"$folder/tables/numbers" | tr -d ' ') numbers"
rm -r "$folder"

# An array is one job of many tasks; each finds its number.
id=$(ostler submit --name shards --array 3 -- sh -c 'echo "shard $OSTLER_INDEX of 3"')
ostler wait "$id"
ostler logs "$id.2"
