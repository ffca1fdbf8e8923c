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

# Its PCI address.
pci() { cat "/sys/class/nvme/$(controller "$1")/address"; }
