//! What the agent tells systemd (sd_notify(3)). Without a NOTIFY_SOCKET all of it does nothing.

use sd_notify::NotifyState;
use std::{
    ffi::OsStr,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The way to the service manager. It is opened while the agent still has all its privileges: a manager's socket may
/// lie in a folder that the agent's later user cannot enter.
pub(super) struct Manager {
    socket: Option<UnixDatagram>,
}

impl Manager {
    /// Connects to the manager that started this process.
    pub(super) fn connect() -> Manager {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Manager { socket: None } };
        let socket = connect(&path).inspect_err(|e| log::warn!("NOTIFY_SOCKET={}: {e}", path.display())).ok();
        Manager { socket }
    }

    /// The agent answers and its first reading is taken.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// A reload begins. [`Manager::ready`] ends it.
    pub(super) fn reloading(&self) {
        let mut states = vec![NotifyState::Reloading];
        // systemd needs the time to tell this reload from an earlier one.
        states.extend(NotifyState::monotonic_usec_now().ok());
        self.tell(&states);
    }

    /// The agent ends.
    pub(super) fn stopping(&self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Still alive.
    pub(super) fn watchdog(&self) {
        self.tell(&[NotifyState::Watchdog]);
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        if let Err(e) = socket.send(text.as_bytes()) {
            log::warn!("telling the service manager: {e}");
        }
    }
}

fn connect(path: &OsStr) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not stop the agent.
    socket.set_nonblocking(true)?;
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(path)?,
    }
    Ok(socket)
}

/// How often [`Manager::watchdog`] is expected, halved for safety. `None`: it is not.
pub(super) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|timeout| timeout / 2).filter(|interval| !interval.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_reached_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("glake-test-{}", std::process::id());
        let abstract_socket =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (abstract_socket, format!("@{name}").into()),
        ] {
            let manager = Manager { socket: Some(connect(&address).unwrap()) };
            manager.ready("answering");
            let mut buffer = [0; 256];
            let n = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"READY=1\nSTATUS=answering\n");
        }
        assert!(connect(OsStr::new("/nonexistent/notify")).is_err());
    }
}
