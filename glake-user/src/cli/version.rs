//! What `glake --version` says: enough to tell two binaries apart in a bug report.

/// The version alone: `glake -V`.
pub(super) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// The commit this binary was built from; `None` in a build that does not follow commits.
pub(crate) const COMMIT: Option<&str> = option_env!("GLAKE_COMMIT");

/// Version, commit, target, and the number of the format shared with the eBPF programs.
pub(super) fn long() -> String {
    format!(
        "{SHORT}\ncommit {}\ntarget {}\neBPF ABI {}",
        COMMIT.unwrap_or("unknown (development build)"),
        env!("GLAKE_TARGET"),
        glake_common::ABI,
    )
}
