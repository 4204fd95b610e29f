#!/bin/sh
# A pipeline: three stages, submitted at once, of which each waits for the one before it. The fleet keeps the order, also when this
# script and its terminal are gone. If a stage fails, those behind it are cancelled, and `ostler why` says by what.
#
#     sh examples/pipeline.sh FOLDER      # a folder that all machines see: on one machine any will do
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)

# 1. One job makes the data.
make=$(ostler submit --name make -- sh -c "seq 1 1000 > $folder/numbers")

# 2. Four tasks work on a quarter each: one array, each task with its number in $OSTLER_INDEX.
work=$(ostler submit --name work --array 4 --after "$make" -- \
    sh -c "awk 'NR % 4 == '\$OSTLER_INDEX' { sum += \$1 } END { print sum }' $folder/numbers > $folder/part-\$OSTLER_INDEX")

# 3. One gathers what they found, and leaves it as its artifact.
gather=$(ostler submit --name gather --after "$work" -- \
    sh -c "cat $folder/part-* | awk '{ sum += \$1 } END { print \"the sum is \" sum }' | tee \$OSTLER_OUT/sum")

ostler wait "$gather"
ostler logs "$gather"
