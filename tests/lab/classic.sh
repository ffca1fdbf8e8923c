# The same load through the classic trace points, then a ring that is too small, then one probe at a time taken away.
. /lab/lib.sh
a=$(disk glake0)
echo "$a" >/out/names.txt
probes '{"profile":"full","btf":false,"max_cpu_percent":0}'
sample start
load mixed /dev/$a read:100x4096 write:40x65536
load flushes /dev/$a flush:2
sample end
probes_end

# Every request is slower than 1 ns, and the ring holds few of the events.
probes '{"profile":"light","slow_io_ns":1,"ring_bytes":4096,"max_cpu_percent":0}'
sample ring_start
load flood /dev/$a read:1000x4096
sample ring_end
events ring_events
probes_end

for probe in block_start block_complete nvme_setup nvme_complete nvme_sq iommu_map iommu_unmap; do
    probes '{"profile":"full","max_cpu_percent":0,"disabled":["'$probe'"]}'
    sample without_${probe}_start
    load without_${probe}_load /dev/$a read:20x4096 write:10x65536
    sample without_${probe}_end
    probes_end
done
