//! `glake doctor`: each "no" and "could not tell" is provoked for real.

use anyhow::Result;
use glake_tests::binary::{self, Ran};
use serde_json::Value;
use std::process::Command;

/// Runs a shell line as root; `None` where we are not.
fn as_root(line: &str) -> Result<Option<Ran>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to provoke this");
        return Ok(None);
    }
    let out = Command::new("sh").arg("-ec").arg(line).env("GLAKE", binary::path()).output()?;
    Ok(Some(Ran {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }))
}

fn fact(report: &Value, name: &str) -> Value {
    let facts = report["facts"].as_array().cloned().unwrap_or_default();
    facts.into_iter().find(|f| f["name"] == name).unwrap_or_default()
}

#[test]
fn it_reports_and_its_exit_code_is_its_worst_finding() {
    let ran = binary::run(&["doctor", "--json"], "");
    let report = ran.json();
    assert_eq!(report["exit_code"], ran.code);
    let expected =
        match (report["failures"].as_u64(), report["warnings"].as_u64(), report["unknown"].as_u64()) {
            (Some(0), Some(0), Some(0)) => 0,
            (Some(0), _, _) => 1,
            _ => 2,
        };
    assert_eq!(ran.code, expected);
    for name in ["btf", "lockdown", "capabilities", "tracefs", "securityfs", "perf_event_paranoid", "cgroup"]
    {
        assert!(
            ["yes", "no", "cannot_tell"].contains(&fact(&report, name)["state"].as_str().unwrap_or("")),
            "{name}"
        );
    }
}

#[test]
fn the_text_has_the_same_answers_and_no_escapes_in_a_pipe() {
    let ran = binary::run(&["doctor"], "");
    for part in ["KERNEL", "COVERAGE", "FINDINGS", &format!("exit {}", ran.code)] {
        assert!(ran.stdout.contains(part), "{}", ran.stdout);
    }
    assert!(!ran.stdout.contains('\x1b') && ran.stderr.is_empty());
}

#[test]
fn a_dropped_capability_is_named() -> Result<()> {
    for (drop, name) in [
        ("-bpf,-sys_admin", "CAP_BPF"),
        ("-perfmon,-sys_admin", "CAP_PERFMON"),
        ("-syslog,-sys_admin", "CAP_SYSLOG"),
    ] {
        let line = format!("setpriv --bounding-set={drop} --inh-caps=-all $GLAKE doctor --json || true");
        let Some(ran) = as_root(&line)? else { return Ok(()) };
        let capabilities = fact(&ran.json(), "capabilities");
        assert_eq!(capabilities["state"], "no", "{drop}: {}", ran.stderr);
        assert!(capabilities["reason"].as_str().is_some_and(|r| r.contains(name)), "{capabilities}");
    }
    Ok(())
}

#[test]
fn a_user_without_privileges_gets_no_with_the_remedy_and_no_lie() -> Result<()> {
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    let Some(ran) = as_root(&format!("{nobody} $GLAKE doctor --json || true"))? else { return Ok(()) };
    let report = ran.json();
    assert_eq!(fact(&report, "capabilities")["state"], "no");
    assert_eq!(fact(&report, "tracefs")["state"], "no", "mode 0700");
    let on = report["probes"].as_array().into_iter().flatten().filter(|p| p["state"] == "on").count();
    assert_eq!(on, 0, "nothing can be on without a capability: {}", report["probes"]);
    assert_eq!(report["exit_code"], 2);
    Ok(())
}

#[test]
fn a_missing_tracefs_is_told() -> Result<()> {
    let without = |more: &str| {
        as_root(&format!(
            "unshare --mount {more} sh -ec 'mount -t tmpfs none /sys/kernel/tracing; mount -t tmpfs none /sys/kernel/debug; \
             $WITHOUT $GLAKE doctor --json || true'"
        ))
    };
    let Some(ran) = without("env WITHOUT='setpriv --bounding-set=-sys_admin --inh-caps=-all'")? else {
        return Ok(());
    };
    let tracefs = fact(&ran.json(), "tracefs");
    assert_eq!(tracefs["state"], "no");
    assert!(tracefs["remedy"].as_str().is_some_and(|r| r.contains("mount -t tracefs")), "{tracefs}");
    let Some(ran) = without("")? else { return Ok(()) };
    let tracefs = fact(&ran.json(), "tracefs");
    assert_eq!(tracefs["state"], "yes");
    assert!(tracefs["detail"].as_str().is_some_and(|d| d.contains("for itself alone")), "{tracefs}");
    Ok(())
}

#[test]
fn lockdown_is_unknown_without_securityfs_and_known_with_it() -> Result<()> {
    let hide =
        "unshare --mount sh -ec 'mount -t tmpfs none /sys/kernel/security; $GLAKE doctor --json || true'";
    let Some(ran) = as_root(hide)? else { return Ok(()) };
    let lockdown = fact(&ran.json(), "lockdown");
    assert_eq!(lockdown["state"], "cannot_tell");
    assert!(lockdown["remedy"].as_str().is_some_and(|r| r.contains("securityfs")), "{lockdown}");
    let show = "unshare --mount sh -ec 'mount -t securityfs none /sys/kernel/security; $GLAKE doctor --json || true'";
    let Some(ran) = as_root(show)? else { return Ok(()) };
    let report = ran.json();
    assert_eq!(fact(&report, "securityfs")["state"], "yes");
    assert_ne!(fact(&report, "lockdown")["state"], "cannot_tell");
    Ok(())
}

#[test]
fn without_proc_it_could_not_tell_and_does_not_guess() -> Result<()> {
    let hide = "unshare --mount sh -ec 'cp $GLAKE /run/glake.test.$$; mount -t tmpfs none /proc; \
                /run/glake.test.$$ doctor --json || true; rm /run/glake.test.$$'";
    let Some(ran) = as_root(hide)? else { return Ok(()) };
    let report = ran.json();
    assert_eq!(fact(&report, "capabilities")["state"], "cannot_tell");
    assert_eq!(fact(&report, "perf_event_paranoid")["state"], "cannot_tell");
    assert_ne!(report["exit_code"], 0);
    Ok(())
}

#[test]
fn without_sys_btf_is_no_and_cgroups_cannot_be_told() -> Result<()> {
    let hide = "unshare --mount sh -ec 'mount -t tmpfs none /sys; $GLAKE doctor --json || true'";
    let Some(ran) = as_root(hide)? else { return Ok(()) };
    let report = ran.json();
    assert_eq!(fact(&report, "btf")["state"], "no");
    assert_eq!(fact(&report, "cgroup")["state"], "cannot_tell");
    assert_eq!(fact(&report, "securityfs")["state"], "cannot_tell");
    Ok(())
}

#[test]
fn a_pid_namespace_gets_a_sentence() -> Result<()> {
    let line = "unshare --pid --fork --mount-proc sh -ec '$GLAKE doctor --json || true'";
    let Some(ran) = as_root(line)? else { return Ok(()) };
    let report = ran.json();
    let sentences = report["surroundings"].to_string();
    assert!(sentences.contains("pid namespace of its own"), "{sentences}");
    Ok(())
}

#[test]
fn a_user_namespace_is_not_taken_for_root() -> Result<()> {
    let line = "unshare --user --map-root-user sh -ec '$GLAKE doctor --json || true'";
    let Some(ran) = as_root(line)? else { return Ok(()) };
    if ran.stdout.is_empty() {
        eprintln!("skipped: user namespaces are closed here: {}", ran.stderr);
        return Ok(());
    }
    let capabilities = fact(&ran.json(), "capabilities");
    assert!(capabilities["reason"].as_str().is_some_and(|r| r.contains("user namespace")), "{capabilities}");
    Ok(())
}
