use super::*;

/// A tree with these files below it.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn status(caps: u64) -> String {
    format!("Name:\tglake\nCapPrm:\t0000000000000000\nCapEff:\t{caps:016x}\n")
}

fn reason(answer: &Answer) -> String {
    match answer {
        Answer::No { reason, .. } => reason.clone(),
        other => panic!("not a no: {other:?}"),
    }
}

fn error(answer: &Answer) -> String {
    match answer {
        Answer::CannotTell { error, .. } => error.clone(),
        other => panic!("not a could-not-tell: {other:?}"),
    }
}

#[test]
fn an_empty_root_yields_no_yes_at_all() {
    let dir = tree(&[]);
    for fact in facts(dir.path()) {
        assert!(!fact.answer.is_yes(), "{fact:?}");
    }
}

#[test]
fn btf_is_told_by_its_first_bytes() {
    let path = "sys/kernel/btf/vmlinux";
    let dir = tree(&[(path, "")]);
    fs::write(dir.path().join(path), 0xeb9f_u16.to_ne_bytes()).unwrap();
    assert!(btf(dir.path()).is_yes());
    assert!(error(&btf(tree(&[(path, "no BTF")]).path())).contains("does not begin like BTF"));
    assert!(error(&btf(tree(&[(path, "")]).path())).contains("vmlinux"), "empty");
    assert!(reason(&btf(tree(&[]).path())).contains("CONFIG_DEBUG_INFO_BTF"));
}

#[test]
fn lockdown_is_the_word_in_brackets() {
    let at = |text: &str| lockdown(tree(&[("sys/kernel/security/lockdown", text)]).path());
    assert_eq!(at("[none] integrity confidentiality\n"), Answer::Yes { detail: "none".into() });
    assert!(at("none [integrity] confidentiality\n").is_yes());
    assert!(
        reason(&at("none integrity [confidentiality]\n")).contains("which all but the block probes need")
    );
    for broken in ["", "[", "[]", "]integrity[", "[strict]"] {
        assert!(error(&at(broken)).contains("reads"), "{broken:?}");
    }
}

#[test]
fn a_kernel_without_lockdown_is_told_from_a_hidden_securityfs() {
    let without = tree(&[("sys/kernel/security/lsm", "capability")]);
    assert!(lockdown(without.path()).is_yes());
    let hidden = tree(&[("proc/cmdline", "quiet lockdown=integrity")]);
    fs::create_dir_all(hidden.path().join("sys/kernel/security")).unwrap();
    let text = error(&lockdown(hidden.path()));
    assert!(text.contains("not mounted") && text.contains("asks for lockdown=integrity"), "{text}");
    assert!(reason(&securityfs(hidden.path())).contains("not mounted"));
}

#[test]
fn missing_capabilities_are_named_with_what_is_lost() {
    let all = NEEDED.iter().fold(0, |caps, c| caps | 1 << c.bit);
    let at = |caps: u64| capabilities(tree(&[("proc/self/status", &status(caps))]).path());
    assert!(at(all).is_yes());
    for c in NEEDED {
        let text = reason(&at(all & !(1 << c.bit)));
        assert!(text.contains(c.name) && text.contains(c.without), "{text}");
    }
    assert!(error(&capabilities(tree(&[("proc/self/status", "CapEff:\tzz")]).path())).contains("CapEff"));
}

#[test]
fn sys_admin_stands_for_all_but_reading_folders() {
    let dir = tree(&[("proc/self/status", &status(1 << SYS_ADMIN))]);
    let missing: Vec<_> = missing_capabilities(dir.path()).unwrap().iter().map(|c| c.name).collect();
    assert_eq!(missing, ["CAP_DAC_READ_SEARCH"]);
}

#[test]
fn root_of_a_user_namespace_is_not_root() {
    let dir = tree(&[("proc/self/status", &status(u64::MAX)), ("proc/self/uid_map", "0 1000 1\n")]);
    assert!(reason(&capabilities(dir.path())).contains("user namespace"));
    assert!(surroundings(dir.path()).iter().any(|s| s.contains("user namespace")));
}

#[test]
fn tracefs_is_found_in_both_places() {
    for place in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
        let dir = tree(&[(&format!("{place}/events/enable"), "0")]);
        assert_eq!(tracefs(dir.path()), Answer::Yes { detail: format!("/{place}") });
    }
    assert!(reason(&tracefs(tree(&[]).path())).contains("not mounted"));
    let strange = tree(&[("sys/kernel/tracing/events", "a file")]);
    assert!(error(&tracefs(strange.path())).contains("/sys/kernel/tracing/events"));
}

#[test]
fn perf_event_paranoid_is_judged_by_what_it_refuses() {
    let at = |level: &str, caps: u64| {
        let files = [("proc/sys/kernel/perf_event_paranoid", level), ("proc/self/status", &status(caps))];
        perf_event_paranoid(tree(&files).path())
    };
    assert!(at("-1\n", 0).is_yes() && at("2\n", 0).is_yes());
    assert!(reason(&at("4\n", 1 << 38)).contains("even to CAP_PERFMON"));
    assert!(at("3\n", 1 << SYS_ADMIN).is_yes());
    assert!(error(&at("", 0)).contains("reads"));
}

#[test]
fn the_cgroup_version_is_told() {
    assert!(cgroup(tree(&[("sys/fs/cgroup/cgroup.controllers", "cpu")]).path()).is_yes());
    assert!(reason(&cgroup(tree(&[("sys/fs/cgroup/unified/cgroup.procs", "")]).path())).contains("v1 with"));
    assert!(reason(&cgroup(tree(&[("sys/fs/cgroup/cpu/tasks", "")]).path())).starts_with("cgroup v1:"));
    assert!(error(&cgroup(tree(&[]).path())).contains("/sys/fs/cgroup"));
}

#[test]
fn wsl_and_containers_get_a_sentence() {
    let wsl = tree(&[("proc/version", "Linux version 5.15.1-microsoft-standard-WSL2")]);
    assert!(surroundings(wsl.path())[0].starts_with("WSL2"));
    assert!(surroundings(tree(&[(".dockerenv", "")]).path())[0].contains("in a container"));
    let own = tree(&[("proc/self/ns/x", "")]);
    std::os::unix::fs::symlink("pid:[4026532000]", own.path().join("proc/self/ns/pid")).unwrap();
    assert!(surroundings(own.path())[0].contains("hostPID"));
    let hosts = tree(&[(".dockerenv", ""), ("proc/self/ns/x", "")]);
    std::os::unix::fs::symlink("pid:[4026531836]", hosts.path().join("proc/self/ns/pid")).unwrap();
    assert_eq!(surroundings(hosts.path()), [""; 0], "a container with the host's processes misses nothing");
    assert_eq!(surroundings(tree(&[]).path()), [""; 0]);
}

/// Cases I01, I03 and I13, by their files: lockdown is the cause and not a capability; the kernel's types come from a file and not
/// by CAP_SYS_ADMIN; tracefs is there and not mounted.
#[test]
fn what_stops_an_agent_is_told_by_its_own_name() {
    let initial = ("proc/self/uid_map", "         0          0 4294967295\n");
    let locked = tree(&[
        ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
        ("proc/self/status", &status(0x1ff_ffff_ffff)),
        initial,
    ]);
    assert!(capabilities(locked.path()).is_yes(), "root has all: they are not the cause");
    assert!(reason(&lockdown(locked.path())).contains("confidentiality: it refuses kprobes"));

    // CAP_DAC_READ_SEARCH, CAP_SYSLOG, CAP_PERFMON, CAP_BPF and no CAP_SYS_ADMIN.
    let few = tree(&[("proc/self/status", &status(1 << 2 | 1 << 34 | 1 << 38 | 1 << 39)), initial]);
    fs::create_dir_all(few.path().join("sys/kernel/btf")).unwrap();
    fs::write(few.path().join("sys/kernel/btf/vmlinux"), 0xeb9f_u16.to_ne_bytes()).unwrap();
    assert!(btf(few.path()).is_yes());
    let told = format!("{:?} {:?}", btf(few.path()), capabilities(few.path()));
    assert!(capabilities(few.path()).is_yes() && !told.contains("SYS_ADMIN"), "{told}");

    let empty = tree(&[]);
    fs::create_dir_all(empty.path().join("sys/kernel/tracing")).unwrap();
    fs::create_dir_all(empty.path().join("sys/kernel/debug")).unwrap();
    let told = format!("{:?}", tracefs(empty.path()));
    assert!(told.contains("mount -t tracefs") && !told.contains("CONFIG_"), "{told}");
}
