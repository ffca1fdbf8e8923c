# A host that shows little: no tracefs, the NVMe driver loaded late, then a kernel that locks its memory away.
. /lab/lib.sh
umount /sys/kernel/debug 2>/dev/null
umount /sys/kernel/tracing
doctor() {
    glake doctor --json >"/out/$1.json"
    [ $? -le 3 ] || exit 5
}
doctor no_tracefs
ls /sys/kernel/tracing >/out/tracing.txt
probes '{"profile":"full","max_cpu_percent":0}'
sample start
load known /dev/$(disk glake0) read:50x4096 write:10x65536
sample end
names() { echo "$(disk glake0) $(controller glake0)"; }
names >/out/names.txt

# The driver itself goes at once; what carries its trace points only when nobody reads them any more.
rmmod nvme && lsmod | grep -q '^nvme_core' && rmmod nvme_core 2>/out/held.txt && echo unloaded >/out/held.txt
probes_end
rmmod nvme_core || exit 6
[ -e /sys/module/nvme_core ] && exit 7

probes '{"profile":"full","max_cpu_percent":0}'
sample without_module
modprobe nvme
until disk glake0 >/dev/null 2>&1; do sleep 0.1; done
# The kernel numbers controllers in the order in which they come up.
names >/out/late.txt
sample late_start
load late /dev/$(disk glake0) read:50x4096 write:10x65536
sample late_end
probes_end

# An agent, while the kernel's log says that the managed-memory module hurt it. The lines are written as root may.
ip link set lo up 2>/dev/null || ifconfig lo 127.0.0.1 up
GLAKE_LOCK=/run/agent.lock GLAKE_EVENT_STORE=/run/events glake run --for 8s --json --interval 500ms \
    --listen 127.0.0.1:0 >/out/hurt.jsonl 2>/out/hurt.log &
agent=$!
until grep -q 'answering on' /out/hurt.log; do kill -0 $agent || exit 8; sleep 0.1; done
while read -r line; do echo "$line" >/dev/kmsg; done <<'LINES'
BUG: Bad page state in process python3  pfn:8c3f2a
Modules linked in: nvidia_uvm(OE) nvidia(OE) overlay
CPU: 17 PID: 41873 Comm: python3 Tainted: P           OE      6.14.0
Call Trace:
 <TASK>
 bad_page+0x76/0x120
 uvm_hmm_devmem_free+0x5c/0x90 [nvidia_uvm]
 </TASK>
LINES
wait $agent
[ $? -le 3 ] || exit 9

echo confidentiality >/sys/kernel/security/lockdown
doctor confidentiality
probes '{"profile":"full","max_cpu_percent":0}'
sample locked_start
load locked /dev/$(disk glake0) read:50x4096 write:10x65536
sample locked_end
probes_end
