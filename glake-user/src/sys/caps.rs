//! What this process may do: capabilities, user, no_new_privs. Safe calls only; they change the calling thread, so
//! they are made before any other thread exists, and [`single_threaded`] says whether that still holds.

use crate::error::{Error, Kind, Result};
use rustix::{
    process::{Gid, Uid},
    thread,
};

pub use rustix::thread::CapabilitySet;

/// A user to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
}

/// The capabilities that this thread has now.
///
/// # Errors
/// When the kernel refuses to tell.
pub fn held() -> Result<CapabilitySet> {
    let sets = thread::capabilities(None)
        .map_err(|e| Error::os("reading the capabilities of this process", e.into()))?;
    Ok(sets.effective)
}

/// Whether this process has one thread only.
pub fn single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// Keeps of the capabilities only `keep`, becomes `user` if one is given, and makes sure that no program started
/// from here can gain any. There is no way back.
///
/// # Errors
/// When the kernel refuses a step. The process must then end: it may hold more than it should.
pub fn drop_to(keep: CapabilitySet, user: Option<Identity>) -> Result<()> {
    if !single_threaded() {
        return Err(Error::new(
            Kind::Misuse,
            "dropping privileges with more than one thread: the others would keep theirs",
        ));
    }
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: rustix::io::Errno| Error::os(what, e.into())
    };
    thread::set_no_new_privs(true).map_err(failed("setting no_new_privs"))?;
    let keep = held()? & keep;
    for bit in 0..64u32 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // The kernel knows fewer than 64: it answers EINVAL for the others.
        if keep.contains(one) || !thread::capability_is_in_bounding_set(one).unwrap_or(false) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(one) {
            // Without CAP_SETPCAP the bounding set stays; no_new_privs makes it of no use.
            Ok(()) | Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(failed("shrinking the bounding set")(e)),
        }
    }
    // After the bounding set: leaving uid 0 empties the effective set, CAP_SETPCAP with it (capabilities(7)).
    if let Some(user) = user {
        become_user(user)?;
    }
    thread::clear_ambient_capability_set().map_err(failed("clearing the ambient capabilities"))?;
    let sets =
        thread::CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    thread::set_capabilities(None, sets).map_err(failed("dropping capabilities"))
}

fn become_user(user: Identity) -> Result<()> {
    let failed = |e: rustix::io::Errno| {
        Error::os(format!("becoming user {} of group {}", user.uid, user.gid), e.into())
            .remedy("start as root, or leave privileges.user empty")
    };
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    if rustix::process::getuid() == uid && rustix::process::getgid() == gid {
        return Ok(());
    }
    // Without this the kernel takes all capabilities when the last uid 0 goes.
    thread::set_keep_capabilities(true).map_err(failed)?;
    thread::set_thread_groups(&[]).map_err(failed)?;
    thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    thread::set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    thread::set_keep_capabilities(false).map_err(failed)
}
