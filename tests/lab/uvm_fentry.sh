# fentry and fexit on nvidia_uvm: on the same load they count what kprobes count, what the load did and what the driver's
# own queue says; and they let go of the module when nobody uses it, since it cannot be unloaded before.
. /lab/lib.sh
uvm_lab=direct=1
uvm_load uvm_perf_fault_max_batches_per_service=0
refs() { cat /sys/module/nvidia_uvm/refcnt; }

# kprobes at the same time, by a sampler of their own.
mkfifo /run/ask2 /run/told2
sampler '{"profile":"light","uvm_hooks":"kprobe"}' </run/ask2 >/run/told2 &
exec 6>/run/ask2 5</run/told2
read -r answer <&5
refs >/out/refs_kprobe.txt
probes '{"profile":"light","uvm_hooks":"fentry"}'
sample before
refs >/out/refs_fentry.txt

uvm_known >/out/known.txt
# Without the driver's queue: with it, a replay would work on the GPU that is not there.
cat >/tmp/calls <<'S'
notify gpu_fault 1000
notify on_demand 10
notify eviction 5
notify fatal 2
notify thrashing 7
notify throttling 4
notify replay 9
notify service 6
S
uvmload </tmp/calls >/out/calls.txt
sample fentry
events fentry_events
echo 'sample /out/kprobe.json' >&6 && read -r answer <&5
exec 6>&- 5<&-

# Nobody uses the module any more: two readings later it is free.
sample quiet
sample idle
events idle_events
sleep 1
refs >/out/refs_idle.txt
sample still_idle

# A process comes: attached again, and the process is found by its open file.
mkfifo /tmp/hold
uvmload </tmp/hold >/out/hold.txt &
held=$!
exec 7>/tmp/hold
while ! grep -q initialize /out/hold.txt; do sleep 0.1; done
sample woken
echo 'fault 8 write' >&7
while ! grep -q '"fault"' /out/hold.txt; do sleep 0.1; done
sample held
kill "$held"
wait "$held"
sample quiet_again
sample idle_again
sleep 1
uvm_unload
echo $? >/out/unload_status.txt
sample unloaded

uvm_load uvm_perf_fault_max_batches_per_service=0
sample loaded
printf 'fault 16 write\n' >/tmp/again
uvmload </tmp/again >/out/again.txt
sample again
events again_events
probes_end
