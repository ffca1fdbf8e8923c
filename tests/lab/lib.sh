# Shell functions for the lab's jobs: `. /lab/lib.sh`. SSDs are named by serial number.

# The namespace's block device, such as nvme1n1 (the head, where multipath hides the paths).
disk() {
    for b in /sys/block/nvme*n*; do
        case ${b##*/} in nvme*c*n*) continue ;; esac
        for s in "$b/device/serial" "$b"/device/nvme*/serial; do
            [ -e "$s" ] && [ "$(tr -d ' ' <"$s")" = "$1" ] && echo "${b##*/}" && return
        done
    done
    echo "no SSD $1" >&2
    return 1
}

# The controller, such as nvme1.
controller() {
    for c in /sys/class/nvme/nvme*; do
        [ "$(tr -d ' ' <"$c/serial")" = "$1" ] && echo "${c##*/}" && return
    done
    echo "no controller $1" >&2
    return 1
}

# The folder of a disk's request queue. With multipath the head passes bios on: the queue, with its scheduler, is that of the hidden path.
queue_of() { ls -d /sys/block/nvme*c*n1/queue /sys/block/$1/queue/scheduler 2>/dev/null | sed 's,/scheduler,,' | grep "${1%n1}[cn]"; }

# Its PCI address.
pci() { cat "/sys/class/nvme/$(controller "$1")/address"; }

# Inserts nvidia-uvm (of `--uvm`) with the driver's own tests enabled, and makes its device nodes. $uvm_lab: parameters
# of the test module.
uvm_load() {
    insmod /uvm/nvidia.ko && insmod /uvm/nvidia-uvm.ko uvm_enable_builtin_tests=1 "$@" || return 1
    insmod /uvm/glake_uvm_lab.ko $uvm_lab || return 1
    major=$(awk '$2 == "nvidia-uvm" { print $1 }' /proc/devices)
    rm -f /dev/nvidia-uvm /dev/nvidia-uvm-tools
    mknod /dev/nvidia-uvm c "$major" 0
    mknod /dev/nvidia-uvm-tools c "$major" 1
}

uvm_unload() { rmmod glake_uvm_lab nvidia_uvm nvidia; }

# The live probes: `probes SETTINGS_JSON`, then `sample NAME` and `events NAME` write /out/NAME.json, `probes_end`.
probes() {
    rm -f /run/ask /run/told
    mkfifo /run/ask /run/told
    sampler "$1" </run/ask >/run/told &
    exec 8>/run/ask 9</run/told
    told
}
told() {
    read -r answer <&9 && [ "$answer" = ok ] && return
    echo "the sampler ended" >&2
    exit 4
}
sample() { echo "sample /out/$1.json" >&8 && told; }
events() { echo "events /out/$1.json" >&8 && told; }
probes_end() { exec 8>&- 9<&- && wait; }

# A load with known counts, its account in /out/NAME.json: `load NAME ARGUMENTS-OF-IOLOAD`.
load() {
    name=$1
    shift
    ioload "$@" >"/out/$name.json"
}

# The agent in the background, its number in $agent, until it answers.
agent_begins() {
    glake run --interval 1s >/out/agent.txt 2>&1 &
    agent=$!
    until wget -q -O /out/healthz.json http://127.0.0.1:9517/healthz; do sleep 0.5; done
}

# Waits until there is a GPU event, 20 s at most.
event_told() {
    n=0
    until glake events list --json 2>/dev/null | grep -q .; do
        sleep 1
        n=$((n + 1))
        [ $n -lt 20 ] || break
    done
}

# The load whose numbers the tests know (READS, WRITES): blocks written, read and moved, and the driver's own count of that.
uvm_known() {
    cat >/tmp/known <<'S'
track
fault 64 write
fault 32 read
migrate 4
counts
S
    uvmload </tmp/known
}
