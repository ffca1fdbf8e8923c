# Xid reports by each source: the driver's reporting function, the trace point of newer drivers, the kernel log alone. The
# reports are calls of nv_report_error in the stand-in for nvidia.ko, on PCI devices of this guest.
. /lab/lib.sh
gpu=0000:00:00.0
other=$(pci slow)
echo "$other" >/out/other.txt
report() { echo "$1 $2 $3" >/sys/module/nvidia/parameters/report; }
# A line of the log as the driver writes it.
line() { echo "NVRM: Xid (PCI:${1%.*}): $2, pid=$3, name=$4, Ch 00000008" >/dev/kmsg; }

# The driver comes after the agent, as on a node whose driver is in a container.
probes '{"profile":"light"}'
sample none
insmod /uvm/nvidia.ko
sample before
report $gpu 31 5
report "$other" 79 2
# An exact source counts: the log's line must not count again.
line $gpu 31 7 a
events kprobe_events
sample kprobe

# The module is not held, and what was counted goes on.
rmmod nvidia
echo $? >/out/unload_status.txt
sample gone
insmod /uvm/nvidia.ko
sample back
report $gpu 31 4
sample again
events again_events

# A newer driver has a trace point, which is better: its reports have a text.
rmmod nvidia
insmod /uvm/nvidia.ko && insmod /uvm/glake_xid_lab.ko
sample traced_before
report $gpu 31 3
events traced_events
sample traced
probes_end

probes '{"profile":"light","disabled":["xid"]}'
sample log_before
report $gpu 31 6
line $gpu 31 7 a
line $gpu 31 7 a
line "$other" 79 8 b
sample log
probes_end

# The agent: an exact count, and the process from the log's line.
rmmod glake_xid_lab
agent_begins
sleep 2
# The log is rate-limited: of three reports it has one line.
report $gpu 31 3
line $gpu 31 $$ sh
event_told
# A record is complete when nothing more has come for 30 s.
n=0
until wget -q -O /out/metrics.txt http://127.0.0.1:9517/metrics && grep -q '^glake_gpu_xid_unlogged_total [1-9]' /out/metrics.txt; do
    sleep 1
    n=$((n + 1))
    [ $n -lt 60 ] || break
done
kill $agent
wait $agent
glake events show --json >/out/record.json
echo $$ >/out/pid.txt
