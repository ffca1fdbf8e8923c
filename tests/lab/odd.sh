# Hardware that misbehaves: a slow SSD, one with bad sectors, one that is pulled out, and a device with wild DMA.
. /lab/lib.sh
slow=$(disk slow) bad=$(disk bad) gone=$(disk gone)
echo "$slow $bad $gone $(controller slow) $(controller bad) $(controller gone)" >/out/names.txt
probes '{"profile":"light","max_cpu_percent":0}'
sample start
# The first reads use up QEMU's burst; after that every one waits its turn.
load burst /dev/$slow read:10x4096
sample slow_start
load slow /dev/$slow read:20x4096
sample slow_end

load bad /dev/$bad read:40x4096 write:40x4096
sample bad_end
events bad_events

dmar() { awk '/dmar0/ { n = 0; for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+$/) n += $i; print n }' /proc/interrupts; }
edu=$(grep -l 0x11e8 /sys/bus/pci/devices/*/device)
edu=${edu%/device}
echo 1 >$edu/enable
# Bus master: bit 2 of the command register at offset 4.
printf '\006' | dd of=$edu/config bs=1 seek=4 conv=notrunc 2>/dev/null
bar=$(awk 'NR == 1 { print $1 }' $edu/resource)
dmar >/out/dmar_before.txt
for i in 1 2 3 4 5; do
    devmem $((bar + 0x80)) 64 $((0x6000000 + i * 4096))
    devmem $((bar + 0x88)) 64 $((0x40000))
    devmem $((bar + 0x90)) 64 4
    devmem $((bar + 0x98)) 64 1
    sleep 1
done
dmar >/out/dmar_after.txt
sample fault_end
echo "${edu##*/}" >/out/edu.txt

# 64 reads at 40 ms each wait longer than the driver does: it aborts them, and resets the controller if that is not enough.
echo 200 >"$(queue_of "$slow")/io_timeout"
load late /dev/$slow read:64x4096 --depth 64
echo 30000 >"$(queue_of "$slow")/io_timeout"
sample late_end
events late_events
dmesg | grep "$(controller slow): .*timeout" >/out/timeouts.txt

# Pulled out in the middle of a load.
ioload /dev/$gone read:100000x4096 --depth 4 --seconds 30 >/dev/null 2>&1 &
sleep 1
echo 1 >/sys/bus/pci/devices/$(pci gone)/remove
wait $!
sample gone
load after_gone /dev/$slow read:5x4096
sample end
probes_end
