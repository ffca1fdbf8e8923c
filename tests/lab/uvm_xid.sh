# The agent itself, and an Xid after activity: the record must tell what the process paged and how slow the drive was in the
# seconds before. The report is a line in the kernel log, as the driver writes it; everything else happens.
. /lab/lib.sh
uvm_load
slow=/dev/$(disk slow)
controller slow >/out/controller.txt
agent_begins

mkfifo /tmp/work
uvmload </tmp/work >/out/work.txt &
work=$!
exec 7>/tmp/work
while ! grep -q initialize /out/work.txt; do sleep 0.1; done
pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /out/work.txt | head -1)

# What is usual: a read a second, far below the limit of the drive, and hardly any paging.
printf 'notify gpu_fault 1\nnotify on_demand 1\nnotify eviction 1\n' >&7
n=0
while [ $n -lt 76 ]; do
    ioload $slow read:1x4096 >/dev/null
    sleep 1
    n=$((n + 1))
done

# The last seconds: GPU page faults, pages to the GPU and out of it again, and more reads than the drive may do.
echo 'notify gpu_fault 20000' >&7
echo 'notify on_demand 200' >&7
echo 'notify eviction 160' >&7
ioload $slow read:60x4096 --depth 4 >/dev/null
while ! grep -q '"calls":160' /out/work.txt; do sleep 0.1; done
sleep 1
echo "NVRM: Xid (PCI:0000:3b:00): 31, pid=$pid, name=uvmload, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ" >/dev/kmsg
event_told
# The reading in whose interval the report came is told too.
sleep 3
kill $agent
wait $agent
glake events show --json >/out/record.json
glake events show >/out/record.txt
kill $work
