# The probes on nvidia_uvm: exact CPU faults and migrations against what the load did and what the driver's own queue
# counted; every other function by calls of the test module; a process older than the probes; the module gone and back.
. /lab/lib.sh
uvm_load

# An older process: its address space is there before the probes, so only its open file tells whose it is.
mkfifo /tmp/old
uvmload </tmp/old >/out/old.txt &
exec 7>/tmp/old
echo 'sleep 10' >&7
old=$!
echo "$old" >/out/old_pid.txt
while ! grep -q initialize /out/old.txt; do sleep 0.1; done

probes '{"profile":"light"}'
sample before

uvm_known >/out/known.txt
# It has ended, and its address space with it: what it did must still be there.
sample known

# `notify` by a process that the probes saw from its start.
cat >/tmp/calls <<'S'
notify gpu_fault 1000
notify on_demand 10
notify prefetch 20
notify access_counter 3
notify eviction 5
notify fatal 2
notify thrashing 7
notify throttling 4
notify replay 9
notify service 6
notify batch 40
notify evict 3
notify push_out 2
S
uvmload </tmp/calls >/out/calls.txt
sample calls
events calls_events

# The older one does not touch memory, so no CPU fault can tell whose space it is.
echo 'notify on_demand 11' >&7
while ! grep -q on_demand /out/old.txt; do sleep 0.1; done
sample old
# Not by closing its input: the sampler has inherited our end of it.
kill "$old"
wait "$old"

# Away and back while attached.
uvm_unload
echo $? >/out/unload_status.txt
sample unloaded
uvm_load
sample loaded
printf 'fault 16 write\n' >/tmp/again
uvmload </tmp/again >/out/again.txt
sample again
events again_events

# More address spaces than there is room for; then structures that cannot be, which end the trust in all others.
ulimit -n 4096
printf 'spaces 600\n' >/tmp/spaces
uvmload </tmp/spaces >/out/spaces.txt
sample full
printf 'notify garbage 3\n' >/tmp/garbage
uvmload </tmp/garbage >/out/garbage.txt
sample garbage
sample after_garbage
probes_end
glake doctor --json >/out/doctor.json 2>/dev/null

# A driver that nobody knows: refused by name. (The version is only a text; nothing else is different.)
mkdir -p /run/version
printf '620.05\n' >/run/version/version
mount --bind /run/version/version /sys/module/nvidia_uvm/version
glake doctor --json >/out/unknown.json 2>/dev/null
umount /sys/module/nvidia_uvm/version
