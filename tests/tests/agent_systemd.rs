//! The shipped unit, started by a real systemd.
//!
//! This machine's init may not be systemd, so the test brings its own: systemd's user manager as root, in a mount and
//! PID namespace of its own. It reads the very unit file, applies its sandbox, capabilities and watchdog, and waits for
//! READY. Two things differ from a system manager and are overridden below: `ProtectHome`, which hides the manager's own
//! runtime folder, and the user, who need not exist here.

use glake_tests::{agent::can_watch, binary};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SYSTEMD: &str = "/lib/systemd/systemd";

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/glake.service")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What happens inside the namespace. Every step prints one line; the last ones are what the test looks at.
const SCRIPT: &str = r#"
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/manager || exit 1
export XDG_RUNTIME_DIR=/run/manager SYSTEMD_UNIT_PATH="$UNITS:"
timeout 140 "$SYSTEMD" --user --unit=basic.target </dev/null >"$UNITS/manager.log" 2>&1 &
# Waits for `$1` to be true; the test's own limit ends it.
until_true() { for i in $(seq 600); do eval "$1" && return; sleep 0.2; done; }
until_true 'systemctl --user is-active -q basic.target'
timeout 60 systemctl --user start glake.service; echo "start $?"
show() { systemctl --user show -P "$1" glake.service; }
pid=$(show MainPID)
grep -E '^(CapEff|CapBnd|NoNewPrivs|Uid|Seccomp):' /proc/$pid/status | tr '\t' ' '
echo "status $(show StatusText)"
for heard in 1 2; do
    last=$(show WatchdogTimestampMonotonic)
    until_true '[ "$(show WatchdogTimestampMonotonic)" != "$last" ]'
done
echo "watchdog $(( $(show WatchdogTimestampMonotonic) > 0 )) $(show ActiveState) $(show NRestarts)"
timeout 10 systemctl --user reload glake.service; echo "reload $?"
until_true 'curl -s --max-time 5 http://$ADDRESS/healthz >$UNITS/health; grep -q "\"status\":\"ok\"" $UNITS/health'
echo "health $(cat $UNITS/health)"
kill -STOP $pid; until_true '[ "$(show NRestarts)" = 1 ]'
echo "hung $(show NRestarts)"
until_true '[ "$(show ActiveState)" = active ]'
timeout 20 systemctl --user stop glake.service
echo "stop $? $(show Result)"
"#;

#[test]
fn the_shipped_unit_starts_is_watched_reloads_restarts_and_stops() {
    let tools =
        ["unshare", "systemctl", "curl"].iter().all(|t| Command::new(t).arg("--version").output().is_ok());
    if !can_watch() || !Path::new(SYSTEMD).exists() || !tools {
        eprintln!("skipped: needs systemd's programs, util-linux and curl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = folder.path();
    fs::copy(unit(), units.join("glake.service")).unwrap();
    // Found free, given back, and taken by the agent.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Bound into the sandbox, whose /tmp is its own: the checkout may lie there.
    let program = fs::canonicalize(binary::path()).unwrap().display().to_string();
    let dropin = format!(
        "[Service]\nExecStart=\nExecStart={program} run --listen {address} --interval 200ms\n\
         Environment=GLAKE_PRIVILEGES_USER=65534:65534 GLAKE_LOCK=/run/manager/glake/agent.lock GLAKE_EVENT_STORE=/tmp/events\n\
         WatchdogSec=10\nRestartSec=0\nProtectHome=no\nBindReadOnlyPaths={program}\nStandardError=append:{}\n",
        units.join("agent.log").display()
    );
    fs::create_dir(units.join("glake.service.d")).unwrap();
    fs::write(units.join("glake.service.d/test.conf"), dropin).unwrap();
    let ran = Command::new("timeout")
        .args([
            "-k",
            "5",
            "150",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            SCRIPT,
        ])
        .env("UNITS", units)
        .env("SYSTEMD", SYSTEMD)
        .env("ADDRESS", address.to_string())
        .output()
        .unwrap();
    let said = text(&ran);
    let line = |start: &str| {
        let found = said.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("no line {start:?} in\n{said}")).trim().to_owned()
    };
    assert_eq!(
        line("start"),
        "0",
        "{said}\n{}",
        ["manager.log", "agent.log"].map(|f| fs::read_to_string(units.join(f)).unwrap_or_default()).concat()
    );
    assert_eq!(line("Uid:"), "65534 65534 65534 65534");
    // capability.h: DAC_READ_SEARCH 2, SYSLOG 34, PERFMON 38, BPF 39.
    assert_eq!(line("CapEff:"), "000000c400000004");
    assert_eq!(line("CapBnd:"), "000000c400000004");
    assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), ("1".into(), "2".into()));
    assert_eq!(line("status"), format!("answering on {address}"));
    assert_eq!(line("watchdog"), "1 active 0", "the watchdog is fed");
    assert_eq!(line("reload"), "0");
    assert!(
        line("health").contains("\"status\":\"ok\""),
        "every required probe is on inside the sandbox: {said}"
    );
    assert_eq!(line("hung"), "1", "an agent that hangs is started again");
    // Past the unit's TimeoutStopSec it would have been killed, and the result `timeout`.
    assert_eq!(line("stop"), "0 success", "{said}");
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_its_exposure_is_low() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: needs systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("glake.service");
    // verify wants the program to exist, and it is not installed here.
    let program = fs::canonicalize(binary::path()).unwrap().display().to_string();
    let shipped = fs::read_to_string(unit()).unwrap();
    assert!(shipped.contains("ExecStart=/usr/bin/glake run\n"), "{shipped}");
    fs::write(&copy, shipped.replace("/usr/bin/glake", &program)).unwrap();
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output().unwrap();
    assert!(verify.status.success() && text(&verify).trim().is_empty(), "{}", text(&verify));
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=40"])
        .arg(&copy)
        .output()
        .unwrap();
    assert!(security.status.success(), "exposure above 4.0: {}", text(&security));
}
