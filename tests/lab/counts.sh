# Known loads on quiet SSDs, with a reading before and after each.
. /lab/lib.sh
a=$(disk glake0) b=$(disk glake1) c=$(disk glake2)
echo "$a $b $c $(controller glake0) $(controller glake1) $(controller glake2) $(pci glake0)" >/out/names.txt
trace=/sys/kernel/tracing/events/iommu
for event in map unmap; do
    size=$([ $event = map ] && echo size || echo unmapped_size)
    echo "hist:keys=common_type:vals=$size" >$trace/$event/trigger
done
iommu() { grep "} hitcount" $trace/map/hist $trace/unmap/hist >"/out/$1.txt"; }

probes '{"profile":"full","max_cpu_percent":0}'
sample start
load mixed /dev/$a read:200x4096 write:50x65536 read:20x131072 --depth 4
load flushes /dev/$a flush:3
sample after_mixed

echo mq-deadline >"$(queue_of "$b")/scheduler"
cat "$(queue_of "$a")/scheduler" "$(queue_of "$b")/scheduler" >/out/schedulers.txt
load scheduled /dev/$b read:100x4096 write:30x16384 --depth 2
sample after_scheduled

blkdiscard -o 0 -l 8388608 /dev/$c
sample after_discard

# Nothing moves between the two readings of the same calls.
iommu iommu_before
sample iommu_start
load mapped /dev/$a write:64x65536
sample iommu_end
iommu iommu_after

mke2fs -F /dev/$c >/dev/null
mount -t ext2 /dev/$c /mnt
sync
sample writeback_start
load buffered /mnt/file write:64x65536 --buffered --create 4194304 --cgroup /sys/fs/cgroup/writer
sync
sample writeback_end
cat /sys/fs/cgroup/writer/io.stat >/out/io_stat.txt
umount /mnt
probes_end
