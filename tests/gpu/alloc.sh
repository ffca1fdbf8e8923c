#!/usr/bin/env bash
# The allocator on a real GPU, in one go: rules, the traces on the real driver beside torch's own allocators, the hot
# path, kernels on stitched memory, the driver's costs under load. All parts take about five minutes on an H200.
#
# usage: alloc.sh BINARIES [OUTPUT_FOLDER [PART...]]
#   BINARIES is the folder with bench_alloc and glake, as `cargo build --release -p glake -p glake-tests` leaves them.
#   PART names the parts to run (conformance policy replay torch hot matmul kernels calls); without any: all.
set -u
bin=$(realpath "$1")
out=${2:-${OUT:-.}}
here=$(cd "$(dirname "$0")" && pwd)
shift $(($# > 2 ? 2 : $#))
wanted=" ${*:-conformance policy replay torch hot matmul kernels calls} "
recompute=$here/../data/snapshots/train_recompute.pickle.xz
varlen=$here/../data/snapshots/train_varlen.pickle.xz
failed=0

# Each part has its own deadline, so that one that hangs does not take the others' results away.
part() {
    local name=$1 limit=$2
    shift 2
    case $wanted in *" ${name%%-*} "*) ;; *) return ;; esac
    echo "== $name"
    local start=$SECONDS
    timeout "$limit" "$@" 2>&1 | tee "$out/alloc-$name.txt"
    local code=${PIPESTATUS[0]}
    echo "== $name: exit $code, $((SECONDS - start)) s"
    [ "$code" -eq 0 ] || failed=1
}

part conformance 40 "$bin/bench_alloc" conformance --device cuda:0
part policy 100 "$bin/bench_alloc" policy --device cuda:0 --lag 0 --scale 1,0.9,1.03,1.13 "$recompute" "$varlen"
part replay-recompute 40 "$bin/glake" replay-alloc "$recompute" --on cuda:0
part replay-varlen 40 "$bin/glake" replay-alloc "$varlen" --on cuda:0
part torch 80 python3 "$here/torch_replay.py" "$recompute" "$varlen"
part hot 60 "$bin/bench_alloc" hot --device cuda:0 --pairs 500000
part matmul 60 python3 "$here/matmul_stitched.py"
part kernels 60 "$bin/bench_alloc" kernels --gib 4,32
part calls 60 "$bin/bench_alloc" calls
exit $failed
