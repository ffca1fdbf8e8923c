# `glake uvm` on the real nvidia-uvm: known CPU faults and migrations, injected events of every type, a queue too small
# on purpose, a process killed in the middle, and the module gone.
. /lab/lib.sh
uvm_load

cat >/tmp/known <<'S'
sleep 1500
fault 64 write
fault 32 read
migrate 4
inject 3 500
inject 4 7
inject 6 2
inject 10 3
inject 11 5
inject 13 4
sleep 300
S
glake uvm --exact --json --quiet --output /out/command.json -- uvmload </tmp/known >/out/command_load.txt 2>/out/command.txt
echo $? >/out/command_status.txt

uvmload </tmp/known >/out/pid_load.txt &
glake uvm --exact --json --pid $! >/out/pid_lines.txt 2>/out/pid.txt
echo $? >/out/pid_status.txt
tail -1 /out/pid_lines.txt >/out/pid.json
wait

# Each type that the driver has: of type N, N and 20 events.
echo 'sleep 1500' >/tmp/every
n=1
while [ $n -le 14 ]; do
    echo "inject $n $((20 + n))" >>/tmp/every
    n=$((n + 1))
done
echo 'sleep 300' >>/tmp/every
uvmload </tmp/every >/out/every_load.txt &
glake uvm --exact --json --quiet --pid $! >/out/every.json 2>/out/every.txt
echo $? >/out/every_status.txt
wait

# 63 of 64 entries hold an event: one stays free.
printf 'sleep 1500\ninject 3 20000\nsleep 300\n' >/tmp/burst
uvmload </tmp/burst >/dev/null &
glake uvm --exact --json --quiet --entries 64 --pid $! >/out/small.json 2>/out/small.txt
echo $? >/out/small_status.txt
wait

printf 'sleep 1500\nfault 16 write\nsleep 60000\n' >/tmp/long
uvmload </tmp/long >/dev/null &
victim=$!
(sleep 5; kill -9 $victim) &
glake uvm --exact --json --quiet --pid $victim >/out/killed.json 2>/out/killed.txt
echo $? >/out/killed_status.txt
wait

# On a terminal the report so far is drawn anew each interval. A virtual console is one, and what it shows can be read.
printf 'sleep 1500\nfault 16 write\nsleep 5000\n' >/tmp/shown
uvmload </tmp/shown >/dev/null &
TERM=linux glake uvm --exact --pid $! >/dev/tty1 2>/dev/null &
sleep 4
fold -w 80 /dev/vcs1 >/out/live.txt
wait

# Refused with the reason: to another user without a capability, and with a release that nobody knows.
echo 'nobody:x:65534:65534::/:/bin/sh' >>/etc/passwd
printf 'sleep 6000\n' >/tmp/alone
uvmload </tmp/alone >/out/alone.txt &
alone=$!
while ! grep -q initialize /out/alone.txt; do sleep 0.1; done
su -s /bin/sh nobody -c "glake uvm --pid $alone --for 1s" >/dev/null 2>/out/denied.txt
echo $? >/out/denied_status.txt
mkdir -p /run/version
printf '620.05\n' >/run/version/version
mount --bind /run/version/version /sys/module/nvidia_uvm/version
glake uvm --pid $alone --for 1s >/dev/null 2>/out/unknown.txt
echo $? >/out/unknown_status.txt
umount /sys/module/nvidia_uvm/version
wait

# A queue keeps its process's memory and the module: both must be free now.
uvm_unload
echo $? >/out/unload_status.txt
glake uvm -- sh -c 'exit 7' 2>/out/none.txt
echo $? >/out/none_status.txt
