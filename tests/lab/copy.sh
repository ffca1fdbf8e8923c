# Files to a GPU from real NVMe controllers: by io_uring with registered buffers, polled too, with errors, and where io_uring is off.
. /lab/lib.sh
export GLAKE_DEVICE=host XDG_CACHE_HOME=/run/cache
good=/dev/$(disk good) bad=/dev/$(disk bad) slow=/dev/$(disk slow)
# 64 MiB that differ from place to place.
dd if=/dev/urandom of=$good bs=1M count=64 conv=fsync 2>/dev/null
# `copied NAME ARGUMENTS`: the answer in NAME.json, the talk in NAME.txt, the exit code in NAME.code.
copied() {
    name=$1
    shift
    glake copy "$@" --json >"/out/$name.json" 2>"/out/$name.txt"
    echo $? >"/out/$name.code"
}
echo 3 >/proc/sys/vm/drop_caches
copied direct $good gpu:0 --route disk --verify
copied cached $good gpu:0 --route page_cache --verify

# Poll queues: the controller takes the module's parameter at its next reset.
echo 1 >/sys/module/nvme/parameters/poll_queues
echo 1 >"/sys/class/nvme/$(controller good)/reset_controller"
cat "/sys/block/${good#/dev/}/queue/io_poll" >/out/io_poll.txt
copied polled $good gpu:0 --route disk --poll --verify

copied broken $bad gpu:0 --route disk
# 25 commands a second: far from done when the time is over.
copied late $slow gpu:0 --route disk --limit 2s

echo 2 >/proc/sys/kernel/io_uring_disabled
copied without $good gpu:0 --route disk --verify
copied explained --explain $good gpu:0
exit 0
