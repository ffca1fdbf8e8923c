#!/usr/bin/env bash
# The allocator on a real GPU, in one go: rules, the driver's costs under load, kernels on stitched memory, the traces
# beside torch's own allocators, the hot path. Takes about three minutes on an H200.
#
# usage: alloc.sh BENCH_ALLOC [OUTPUT_FOLDER]
#   BENCH_ALLOC is the release binary of `cargo build --release -p glake-tests --bin bench_alloc`.
set -u
bench=$(realpath "$1")
out=${2:-${OUT:-.}}
here=$(cd "$(dirname "$0")" && pwd)
traces=("$here"/../data/snapshots/train_recompute.pickle.xz "$here"/../data/snapshots/train_varlen.pickle.xz)
failed=0

# Each part has its own deadline, so that one that hangs does not take the others' results away.
part() {
    local name=$1 limit=$2
    shift 2
    echo "== $name"
    timeout "$limit" "$@" 2>&1 | tee "$out/alloc-$name.txt"
    local code=${PIPESTATUS[0]}
    if [ "$code" -ne 0 ]; then
        echo "FAILED $name: exit $code"
        failed=1
    fi
}

part conformance 40 "$bench" conformance --device cuda:0
part calls 60 "$bench" calls
part policy 40 "$bench" policy --device cuda:0 --lag 0 --scale 1 "${traces[@]}"
part policy-model 30 "$bench" policy --lag 0,300 --scale 1 "${traces[@]}"
part torch 80 python3 "$here/torch_replay.py" "${traces[@]}"
part hot 40 "$bench" hot --device cuda:0 --pairs 500000
part kernels 60 "$bench" kernels --gib 4,32
exit $failed
