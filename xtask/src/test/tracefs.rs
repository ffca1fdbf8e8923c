//! Some hosts do not mount tracefs, which tests of the classic trace points look at. It is mounted for the run alone then.

use std::{
    env, fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::Command,
};

use crate::say;

/// Set in the second start, so that there is no third.
const TRIED: &str = "GLAKE_XTASK_TRACEFS";

/// Starts this program anew in a mount namespace of its own with tracefs, where that is missing and may be done. Comes back
/// otherwise: the tests that need it say so then.
pub fn provide() {
    let there = Path::new("/sys/kernel/tracing/events").exists();
    let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if there || !root || env::var_os(TRIED).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    say::step("test", "tracefs is not mounted: mounted for this run alone");
    let mut again = Command::new("unshare");
    again.args(["--mount", "sh", "-c", "mount -t tracefs tracefs /sys/kernel/tracing; exec \"$@\"", "sh"]);
    let failed = again.arg(program).args(env::args_os().skip(1)).env(TRIED, "1").exec();
    say::step("test", &format!("no mount namespace ({failed}): going on without tracefs"));
}
