#!/bin/busybox sh
# First process of the lab's guest: mounts, modules, then the job that xtask wrote to /lab/job.
# Serial ports: ttyS0 kernel console, ttyS1 the job's stdout, ttyS2 its stderr, ttyS3 a tar of /out when it ended.
/bin/busybox --install -s /bin
ln -s /bin/modprobe /sbin/modprobe
export PATH=/bin:/sbin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs trace /sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug
mount -t securityfs security /sys/kernel/security
ln -s /proc/self/fd /dev/fd
hostname glake-lab
ip link set lo up
echo "+io +memory +cpu" > /sys/fs/cgroup/cgroup.subtree_control

modprobe nvme
. /lab/env
# The kernel probes SSDs in the background; a guest that started without one would test nothing.
n=0
while [ "$(cat /sys/class/nvme/*/state 2>/dev/null | grep -c live)" -lt "$NVMES" ] && [ $n -lt 200 ]; do
    sleep 0.1
    n=$((n + 1))
done
for tty in 1 2 3; do stty -F /dev/ttyS$tty raw -echo; done

cd /root
sh /lab/job </dev/null >/dev/ttyS1 2>/dev/ttyS2
echo $? >/out/.status
dmesg >/out/dmesg.txt
tar -c -C /out . >/dev/ttyS3
# Closing a serial port waits for its last byte, so all has left the guest by now.
poweroff -f
