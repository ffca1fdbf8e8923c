#!/bin/bash
# Proof on a machine with a GPU: what `glake uvm` and `glake events` say agrees with what the driver itself counts.
#
#   tests/gpu/uvm.sh BIN [OUT]     BIN: a folder with the programs glake and uvm_touch; OUT: where results go
#
# Needs root, a loaded NVIDIA driver and a GPU that may be used for three minutes. One `--oob` program makes a real
# Xid 31 on it (a store out of bounds in a process of its own; the GPU goes on). Ends by itself.
set -u
BIN=$(cd "$1" && pwd)
OUT=${2:-${OUT:-$(mktemp -d)}}
mkdir -p "$OUT"
GLAKE=$BIN/glake
TOUCH=$BIN/uvm_touch
FAILED=0

say() { printf '%s\n' "$*" | tee -a "$OUT/summary.txt"; }
fail() { say "FAIL  $*"; FAILED=$((FAILED + 1)); }
number() { sed -n "s/.*\"$2\":\([0-9][0-9]*\).*/\1/p" "$1" | tail -1; }
# within NAME A B PERCENT
within() {
    local d=$(($2 > $3 ? $2 - $3 : $3 - $2))
    if [ "$3" -gt 0 ] && [ $((d * 100)) -le $(($3 * $4)) ]; then say "ok    $1: glake $2, the program $3"
    else fail "$1: glake $2, the program $3 (more than $4 % apart)"; fi
}
# compare TITLE GLAKE_JSON PROGRAM_JSON
compare() {
    local key g p
    for key in gpu_faults cpu_faults migrations replays; do
        g=$(number "$2" $key); p=$(number "$3" counted_$key)
        within "$1, $key" "${g:-0}" "${p:-0}" 5
    done
    g=$(number "$2" dropped)
    if [ "${g:-x}" = 0 ]; then say "ok    $1, dropped 0"; else fail "$1: dropped ${g:-unknown}"; fi
    p=$(number "$3" wrong_words)
    if [ "${p:-x}" = 0 ]; then say "ok    $1, the program's data is intact"; else fail "$1: wrong words ${p:-unknown}"; fi
}

say "host: $(uname -sr), lockdown $(cat /sys/kernel/security/lockdown 2>/dev/null || echo unknown), driver $(cat /sys/module/nvidia/version 2>/dev/null || sed -n 1p /proc/driver/nvidia/version)"
[ -e /dev/nvidia-uvm-tools ] || say "note: no /dev/nvidia-uvm-tools node"

# Trace points are files of tracefs; here it may not be mounted.
if [ ! -e /sys/kernel/tracing/events ]; then
    mount -t tracefs tracefs /sys/kernel/tracing && say "note: mounted tracefs" || say "note: tracefs cannot be mounted"
fi
[ -e /sys/kernel/tracing/events/nvidia/nvidia_dev_xid ] && say "ok    trace point nvidia:nvidia_dev_xid" || say "note: no trace point nvidia:nvidia_dev_xid"

say "== 1. glake uvm --exact -- COMMAND"
timeout 60 "$GLAKE" uvm --exact --json --quiet --output "$OUT/own.json" -- "$TOUCH" 256 --passes 3 --count \
    >"$OUT/own-count.json" 2>"$OUT/own.err"; rc=$?
[ $rc = 0 ] && say "ok    exit status 0" || fail "exit status $rc: $(tail -2 "$OUT/own.err")"
compare "own child" "$OUT/own.json" "$OUT/own-count.json"
timeout 60 "$GLAKE" uvm --exact --output "$OUT/own.txt" --quiet -- "$TOUCH" 256 --passes 3 >/dev/null 2>&1
timeout 60 "$GLAKE" uvm --quiet -- bash -c 'exit 7' >/dev/null 2>&1; rc=$?
[ $rc = 7 ] && say "ok    the command's exit status is ours" || fail "exit status $rc instead of 7"

say "== 2. glake uvm --exact --pid, from outside"
"$TOUCH" 256 --passes 5 --wait 2 --count >"$OUT/pid-count.json" 2>"$OUT/pid-touch.err" &
P=$!
timeout 60 "$GLAKE" uvm --exact --pid "$P" --json >"$OUT/pid.json" 2>"$OUT/pid.err"; rc=$?
wait $P
[ $rc = 0 ] && say "ok    exit status 0" || fail "exit status $rc: $(tail -2 "$OUT/pid.err")"
compare "--pid" "$OUT/pid.json" "$OUT/pid-count.json"
say "lines before the summary: $(grep -c '"type":"interval"' "$OUT/pid.json")"
# A target that is killed in the middle.
"$TOUCH" 256 --passes 500 >/dev/null 2>&1 &
P=$!; sleep 2
(sleep 1; kill -9 "$P") &
timeout 30 "$GLAKE" uvm --pid "$P" --quiet >"$OUT/killed.txt" 2>&1; rc=$?
grep -q 'the process ended' "$OUT/killed.txt" && say "ok    a target killed in the middle still has a summary (exit $rc)" || fail "killed target: $(tail -2 "$OUT/killed.txt")"

say "== 3. what each event mask costs"
timeout 90 "$TOUCH" 256 --cost 25 >"$OUT/cost.json" 2>"$OUT/cost.err" || fail "cost: $(tail -2 "$OUT/cost.err")"
tr '{' '\n' <"$OUT/cost.json" | grep '"mask"' | tee -a "$OUT/summary.txt"
# The default: all events, in windows. Longer runs, since a window meets few passes; one plain, one watched, in turn.
for round in 1 2 3 4; do
    "$TOUCH" 256 --passes 60 >"$OUT/plain-$round.json" 2>>"$OUT/cost.err"
    timeout 60 "$GLAKE" uvm --json --quiet --output "$OUT/sampled-$round.jsonl" -- "$TOUCH" 256 --passes 60 >"$OUT/watched-$round.json" 2>>"$OUT/cost.err"
done
mean() { grep -oh '"mean_ms":[0-9.]*' "$OUT"/$1-?.json | cut -d: -f2 | awk '{ s += $1; v[NR] = $1 } END { printf "%.2f ms (", s / NR; for (i = 1; i <= NR; i++) printf("%s%.2f", (i > 1 ? " " : ""), v[i]); print ")" }'; }
P=$(mean plain); W=$(mean watched)
say "mean pass: plain $P, under the default of glake uvm $W"
C=$(awk -v p="${P%% *}" -v w="${W%% *}" 'BEGIN { if (p > 0 && w > 0) printf "%.1f", (w / p - 1) * 100 }')
if [ -z "$C" ]; then fail "the cost of the default could not be worked out"
elif awk -v c="$C" 'BEGIN { exit !(c < 3) }'; then say "ok    the default costs $C %"
else fail "the default costs $C %"; fi
cat "$OUT/sampled-4.jsonl" | tr ',' '\n' | grep -E '"(events_on|gpu_faults|moved_bytes|batches)' | tr '\n' ' ' | tee -a "$OUT/summary.txt"; say ""

say "== 4. a real Xid, through the trace point, as a record"
timeout 60 "$GLAKE" doctor >"$OUT/doctor.txt" 2>&1; say "doctor: exit $?"
STORE=$OUT/store
GLAKE_EVENT_STORE=$STORE GLAKE_LOCK=$OUT/agent.lock timeout 60 "$GLAKE" run --for 12s --listen 127.0.0.1:19776 >"$OUT/agent.txt" 2>&1 &
A=$!; sleep 4
timeout 30 "$TOUCH" 64 --oob >"$OUT/oob.json" 2>"$OUT/oob.err"; say "out of bounds: exit $?, $(cat "$OUT/oob.json")"
sleep 3
(exec 3<>/dev/tcp/127.0.0.1/19776 && printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3 &&
    timeout 5 cat <&3) >"$OUT/metrics.txt" 2>/dev/null
grep -E 'glake_gpu_(xid|up|info)' "$OUT/metrics.txt" | tee -a "$OUT/summary.txt"
wait $A; say "agent: exit $?"
"$GLAKE" events show --store "$STORE" >"$OUT/record.txt" 2>&1; cat "$OUT/record.txt" | tee -a "$OUT/summary.txt"
"$GLAKE" events list --store "$STORE" --json >"$OUT/records.json" 2>&1
PID=$(number "$OUT/oob.json" pid)
grep -q 'Xid 31' "$OUT/record.txt" && say "ok    a record of Xid 31" || fail "no record of Xid 31"
grep -q "pid ${PID:-none} " "$OUT/record.txt" && say "ok    it names the process" || fail "it does not name pid ${PID:-unknown}"
grep -q 'COUNTS *exact' "$OUT/record.txt" && say "ok    its count is exact (trace point)" || fail "its count is not exact"
dmesg 2>/dev/null | grep -E 'NVRM|nvidia' | tail -40 >"$OUT/dmesg-nvidia.txt"
dmesg 2>/dev/null | "$GLAKE" events explain - >"$OUT/explain.txt" 2>&1; say "explain: exit $?, $(tail -1 "$OUT/explain.txt")"

say "== 5. other screens"
timeout 30 "$GLAKE" run --once --interval 2s --json >"$OUT/once.json" 2>"$OUT/once.err"; say "run --once: exit $?"
"$TOUCH" 256 --passes 200 >/dev/null 2>&1 & T=$!; sleep 2
timeout 30 "$GLAKE" who gpu:0 >"$OUT/who.txt" 2>&1; say "who: exit $?"; tee -a "$OUT/summary.txt" <"$OUT/who.txt"
kill "$T" 2>/dev/null; wait "$T" 2>/dev/null
cat "$OUT/own.txt" >>"$OUT/summary.txt"
say "failed: $FAILED"
exit $((FAILED > 0))
