//! What the agent tells systemd (sd_notify(3)). Without a NOTIFY_SOCKET all of it does nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// The agent answers and its first reading is taken.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins. [`ready`] ends it.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    // systemd needs the time to tell this reload from an earlier one.
    states.extend(NotifyState::monotonic_usec_now().ok());
    tell(&states);
}

/// The agent ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Still alive.
pub(super) fn watchdog() {
    tell(&[NotifyState::Watchdog]);
}

/// How often [`watchdog`] is expected, halved for safety. `None`: it is not.
pub(super) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|timeout| timeout / 2)
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        log::warn!("telling systemd: {e}");
    }
}
