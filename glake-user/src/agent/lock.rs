//! One agent per host: a lock on a file, which the kernel frees when the process ends, however it ends.

use crate::error::{Error, Kind, Result};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Held as long as this agent runs.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, and leaves this process's id and address in the file for whoever finds it taken.
    ///
    /// # Errors
    /// [`Kind::Misuse`] when another agent holds it, with its name, pid and address.
    pub fn take(path: &Path, listen: SocketAddr) -> Result<Lock> {
        let failed = |e| {
            Error::os(format!("taking the lock {}", path.display()), e)
                .remedy("run as root, or set `lock` to a path that this user may write")
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(path, &mut file)),
            Err(e) => return Err(failed(e.into())),
        }
        let text = format!("{}\n{listen}\n", std::process::id());
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

fn taken(path: &Path, file: &mut File) -> Error {
    let mut text = String::new();
    // The holder may be between taking the lock and writing its name: then its name is unknown.
    let _ = file.take(256).read_to_string(&mut text);
    let mut lines = text.lines();
    let pid = lines.next().and_then(|pid| pid.parse::<u32>().ok());
    let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let who = match (pid, name) {
        (Some(pid), Some(name)) => format!("{} with pid {pid}", name.trim()),
        (Some(pid), None) => format!("pid {pid}"),
        (None, _) => "its pid is unknown".into(),
    };
    let at = lines.next().map(|address| format!(", answering on {address}")).unwrap_or_default();
    Error::new(
        Kind::Misuse,
        format!("another agent watches this host already: {who}{at} (it holds {})", path.display()),
    )
    .remedy("`glake watch` shows what it sees; stop it first to start another")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_refused_by_name_and_pid_until_the_first_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/agent.lock");
        let listen: SocketAddr = "127.0.0.1:9517".parse().unwrap();
        let first = Lock::take(&path, listen).unwrap();
        let error = Lock::take(&path, listen).unwrap_err();
        let pid = std::process::id();
        assert!(
            error.chain().contains(&format!("with pid {pid}, answering on 127.0.0.1:9517")),
            "{}",
            error.chain()
        );
        drop(first);
        Lock::take(&path, listen).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("precious"), folder.path().join("agent.lock"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(Lock::take(&link, "127.0.0.1:1".parse().unwrap()).is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
    }
}
