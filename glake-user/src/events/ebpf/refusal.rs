//! Why a probe is not on, and what can be done about it.

use super::{symbols, table::Hook};
use crate::{error::Error, sys::lockdown};
use aya::programs::ProgramError;
use std::path::Path;

/// Why a probe is not on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) remedy: Option<String>,
    /// The thing to watch does not exist here: nothing is wrong.
    pub(crate) absent: bool,
    /// It would come with a kernel module.
    pub(crate) module_missing: bool,
}

impl Refusal {
    pub(crate) fn new(reason: String, remedy: Option<String>) -> Refusal {
        Refusal { reason, remedy, absent: false, module_missing: false }
    }

    pub(crate) fn absent(reason: String) -> Refusal {
        Refusal { absent: true, ..Refusal::new(reason, None) }
    }

    pub(crate) fn of(e: &Error) -> Refusal {
        let reason = match std::error::Error::source(e) {
            Some(source) => format!("{e}: {source}"),
            None => e.to_string(),
        };
        Refusal::new(reason, e.remedy_text().map(str::to_owned))
    }

    /// Of fentry or fexit.
    pub(super) fn direct(root: &Path, e: &Error) -> Refusal {
        let source = std::error::Error::source(e).and_then(|s| s.downcast_ref::<std::io::Error>());
        let errno = source.and_then(std::io::Error::raw_os_error);
        Refusal { remedy: remedy(root, errno), ..Refusal::of(e) }
    }

    pub(super) fn program(root: &Path, hook: &Hook, e: &ProgramError) -> Refusal {
        if let (Some(function), ProgramError::SyscallError(s)) = (hook.function(), e) {
            match s.io_error.raw_os_error() {
                Some(libc::ENOENT) => return symbols::absent(root, function),
                Some(libc::EPERM | libc::EACCES) => return symbols::refused(root, function),
                _ => {}
            }
        }
        let (reason, errno) = match e {
            ProgramError::LoadError { io_error, verifier_log } => {
                // The verifier's last words say what it did not like; its format is not an interface, so they are only shown.
                let log = verifier_log.to_string();
                let words: Vec<&str> = log.lines().rev().filter(|l| !is_statistics(l)).take(2).collect();
                let words: Vec<&str> = words.into_iter().rev().collect();
                let reason = format!("the kernel refused the program: {io_error}; {}", words.join("; "));
                // With a complaint of the verifier the errno is not about privileges.
                let errno = io_error.raw_os_error().filter(|_| words.is_empty());
                (reason, errno)
            }
            ProgramError::SyscallError(s) => (format!("{e}: {}", s.io_error), s.io_error.raw_os_error()),
            other => (chain(other), None),
        };
        Refusal::new(reason, remedy(root, errno))
    }
}

/// Lines of a verifier log that follow the complaint.
fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time", "stack depth", "subprog "].iter().any(|p| line.starts_with(p))
}

pub(super) fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        // Some causes repeat the words of their own cause.
        if !out.ends_with(&words) {
            out.push_str(": ");
            out.push_str(&words);
        }
        next = cause.source();
    }
    out
}

/// What a refused load or attachment can be helped by.
pub(super) fn remedy(root: &Path, errno: Option<i32>) -> Option<String> {
    if lockdown::read(root).as_deref() == Some("confidentiality") {
        return Some(
            "boot with lockdown=integrity or none: confidentiality forbids reading kernel memory".to_owned(),
        );
    }
    match errno {
        Some(libc::EPERM | libc::EACCES) => {
            Some("run as root or with CAP_BPF and CAP_PERFMON (systemd: AmbientCapabilities=)".to_owned())
        }
        Some(libc::ENOMEM) => {
            Some("lower map_budget_bytes, or raise the memory limit of the agent".to_owned())
        }
        _ => None,
    }
}
