//! Who caused a request: the task that submits it, or, when that is a kernel thread, the cgroup of its bio.

use crate::{
    context::{Kernel, offset, param, shard_of},
    maps::{CELL_INFO, CELLS, FREE_CELLS, OWNERS, Place, add, count},
};
use aya_ebpf::helpers::{
    bpf_get_current_comm, bpf_get_current_pid_tgid, generated::bpf_get_current_cgroup_id,
};
use glake_common::{NONE, block::OwnerKey, member::*, param, stat};

/// PF_KTHREAD of include/linux/sched.h.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// The cell, plus one, of whoever submits `bio` (null: not known) now; 0: none is free.
#[inline(always)]
pub fn of_submitter(bio: Kernel, device: Place, op: u32) -> u32 {
    let device_op = device.index() * 8 + op;
    let kernel =
        param(param::HAS_TASK_FLAGS) == 1 && Kernel::current_task().u32(TASK_FLAGS) & KERNEL_THREAD != 0;
    let key = if kernel {
        OwnerKey { cgroup: cgroup_of(bio), tgid: 0, device_op }
    } else {
        // SAFETY: no arguments.
        let cgroup = unsafe { bpf_get_current_cgroup_id() };
        OwnerKey { cgroup, tgid: (bpf_get_current_pid_tgid() >> 32) as u32, device_op }
    };
    // SAFETY: the value is a word that never changes after its insertion.
    match unsafe { OWNERS.get(key) } {
        Some(cell) => *cell + 1,
        None => claim(&key),
    }
}

/// The cgroup2 id of a bio's cgroup; 0 where the I/O controller is on a version 1 hierarchy, whose ids mean nothing to us.
#[inline(always)]
fn cgroup_of(bio: Kernel) -> u64 {
    if offset(BIO_BLKG) == NONE || offset(ROOT_HIERARCHY) == NONE || bio.is_null() {
        return 0;
    }
    let cgroup = bio.follow(BIO_BLKG).follow(BLKG_BLKCG).follow(BLKCG_CGROUP);
    if cgroup.follow(CGROUP_ROOT).u32(ROOT_HIERARCHY) != 0 {
        return 0;
    }
    cgroup.follow(CGROUP_KN).u64(KN_ID)
}

/// Gives a new workload a cell.
#[inline(never)]
fn claim(key: &OwnerKey) -> u32 {
    let Ok(Some(cell)) = FREE_CELLS.pop() else {
        count(stat::OWNERS_FULL);
        return 0;
    };
    let Some(info) = CELL_INFO.get_ptr_mut(cell) else { return 0 };
    // SAFETY: the cell came out of the queue of free ones, so it is ours alone until OWNERS names it.
    unsafe {
        (*info).key = *key;
        (*info).comm = if key.tgid == 0 { [0; 16] } else { bpf_get_current_comm().unwrap_or([0; 16]) };
        (&raw mut (*info).taken).write_volatile(1);
    }
    // BPF_NOEXIST: another CPU may have been quicker; user space finds the cell that is left over and frees it.
    if OWNERS.insert(key, cell, 1).is_ok() {
        return cell + 1;
    }
    // SAFETY: as in `of_submitter`; and the cell is still ours alone.
    unsafe {
        (&raw mut (*info).taken).write_volatile(0);
        let _ = FREE_CELLS.push(cell, 0);
        match OWNERS.get(key) {
            Some(other) => *other + 1,
            None => {
                count(stat::OWNERS_FULL);
                0
            }
        }
    }
}

/// Books a completed request (`completed` 1) or a merged bio (0).
#[inline(always)]
pub fn book(cell: u32, completed: u64, bytes: u64, wait_ns: u64) {
    if cell == 0 {
        return;
    }
    if let Some(cell) = CELLS.get_ptr_mut(shard_of(cell - 1, param(param::CELL_SHARDS))) {
        // SAFETY: fields of a map value; `add` is atomic.
        unsafe {
            add(&raw mut (*cell).completed, completed);
            add(&raw mut (*cell).bytes, bytes);
            add(&raw mut (*cell).wait_ns, wait_ns);
        }
    }
}
