use super::*;
use crate::host::kernel::Answer;

fn probe(name: &str, family: &str, state: ProbeState, why: Option<(&str, &str)>) -> Probe {
    Probe {
        name: name.into(),
        family: family.into(),
        how: format!("{family}:{name}"),
        state,
        reason: why.map(|(reason, _)| reason.into()),
        remedy: why.map(|(_, remedy)| remedy.into()).filter(|r: &String| !r.is_empty()),
        ..Default::default()
    }
}

fn yes(name: &'static str) -> Fact {
    Fact { name, answer: Answer::Yes { detail: "there".into() } }
}

fn made(facts: Vec<Fact>, probes: Vec<Probe>) -> Report {
    let host = Inventory {
        hostname: "h".into(),
        kernel: "6.12".into(),
        arch: "x86_64".into(),
        ..Default::default()
    };
    let coverage = coverage(&probes).into_iter().map(|c| row(c, &probes)).collect();
    report(host, vec![], facts, (probes, coverage), Duration::from_millis(310))
}

const DENIED: Option<(&str, &str)> = Some(("needs CAP_BPF (EPERM, tried)", "run it with sudo"));

#[test]
fn all_watched_is_clean() {
    let probes = vec![
        probe("block_complete", "block", ProbeState::On, None),
        probe("xid", "xid", ProbeState::Off, Some(("no NVIDIA driver is loaded", ""))),
    ];
    let r = made(vec![yes("btf")], probes);
    assert_eq!((r.exit_code, r.findings.len()), (0, 0));
    let text = text::lines(&r, 120, false).join("\n");
    assert!(
        text.contains("none: all that this host has is watched") && text.ends_with("exit 0, 0.31 s"),
        "{text}"
    );
    assert!(text.contains("no NVIDIA driver is loaded"), "what is off says why: {text}");
}

#[test]
fn no_block_probe_is_a_failure_and_another_family_a_warning() {
    let block = made(vec![], vec![probe("block_complete", "block", ProbeState::Failed, DENIED)]);
    assert_eq!((block.exit_code, block.failures), (2, 1));
    assert_eq!(block.findings[0].remedy.as_deref(), Some("run it with sudo"));
    let on = probe("block_complete", "block", ProbeState::On, None);
    let nvme = made(vec![], vec![on, probe("nvme_setup", "nvme", ProbeState::Failed, DENIED)]);
    assert_eq!((nvme.exit_code, nvme.failures, nvme.warnings), (1, 0, 1));
}

#[test]
fn a_required_probe_that_is_refused_is_a_failure_even_where_others_are_on() {
    let refused = Probe { required: true, ..probe("block_complete", "block", ProbeState::Failed, DENIED) };
    let off = probe("block_issue", "block", ProbeState::Off, Some(("not needed here", "")));
    let r = made(vec![], vec![off, refused, probe("block_start", "block", ProbeState::On, None)]);
    assert_eq!((r.exit_code, r.failures), (2, 1));
    assert!(
        r.findings[0].evidence.starts_with("block_complete: needs CAP_BPF"),
        "what was refused comes first"
    );
}

#[test]
fn what_could_not_be_told_is_unknown_and_never_clean() {
    let unknown = Fact {
        name: "lockdown",
        answer: Answer::CannotTell {
            error: "securityfs is not mounted".into(),
            remedy: Some("mount it".into()),
        },
    };
    let r = made(vec![unknown], vec![probe("block_complete", "block", ProbeState::On, None)]);
    assert_eq!((r.exit_code, r.unknown), (1, 1));
    let text = text::lines(&r, 120, false).join("\n");
    assert!(
        text.contains("0 FAIL  0 WARN  1 UNKNOWN") && text.contains(" UNK  lockdown: securityfs"),
        "{text}"
    );
}

#[test]
fn a_binary_without_probes_says_that_nothing_was_tried() {
    let r = made(vec![yes("btf")], vec![]);
    assert_eq!(r.exit_code, 2);
    assert!(r.findings[0].evidence.contains("built without its eBPF programs"));
}

#[test]
fn probes_with_the_same_reason_share_a_line() {
    let probes = vec![
        probe("a", "nvme", ProbeState::Failed, DENIED),
        probe("b", "nvme", ProbeState::Failed, DENIED),
        probe("c", "nvme", ProbeState::On, None),
    ];
    let r = made(vec![], probes);
    assert_eq!(r.coverage[0].why, ["a, b: needs CAP_BPF (EPERM, tried) -> run it with sudo"]);
    assert_eq!(r.coverage[0].state, Seen::Partly);
}

#[test]
fn the_text_fits_every_width() {
    let long = Some((
        "a reason that goes on for quite a while so that it has to be folded somewhere",
        "a remedy too",
    ));
    let probes = vec![probe("block_complete", "block", ProbeState::Failed, long)];
    let r = made(kernel::facts(Path::new("/")), probes);
    for width in [60, 80, 100, 160] {
        for line in text::lines(&r, width, false) {
            let heading = line.starts_with("GLake ");
            assert!(heading || line.chars().count() <= width, "{width}: {line:?}");
        }
    }
}

#[test]
fn colours_change_no_letter() {
    let r = made(vec![yes("btf")], vec![probe("block_complete", "block", ProbeState::Failed, DENIED)]);
    let plain = text::lines(&r, 100, false).join("\n");
    let mut coloured = text::lines(&r, 100, true).join("\n");
    assert!(coloured.contains('\x1b'));
    for code in ["\x1b[1m", "\x1b[0m", "\x1b[32m", "\x1b[33m", "\x1b[1;31m"] {
        coloured = coloured.replace(code, "");
    }
    assert_eq!(plain, coloured);
}
