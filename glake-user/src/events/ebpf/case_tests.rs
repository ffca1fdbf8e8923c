//! Hosts on which eBPF agents fail, each as the files by which one is told, and what is right to say of it: a table to be read.
//! I03 and I13 are facts of the host, in its room. What only a running kernel shows is in the lab (`tests/kernel`): I01 with the
//! kernel's own refusal, I09 and I11.

use super::{refusal, symbols, uvm};
use std::path::Path;

struct Case {
    number: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// What GLake says of a host with these files.
    said: fn(&Path) -> String,
    says: &'static [&'static str],
    never: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        number: "I01: lockdown=confidentiality, euid 0 with all capabilities, perf_event_open gives EPERM",
        files: &[("sys/kernel/security/lockdown", "none integrity [confidentiality]\n")],
        said: |root| {
            let kprobe = symbols::refused(root, "uvm_perf_event_notify");
            let program = refusal::remedy(root, Some(libc::EPERM));
            format!("{} {:?} {program:?}", kprobe.reason, kprobe.remedy)
        },
        says: &[
            "lockdown is confidentiality",
            "lockdown=integrity or none",
            "`glake uvm --pid PID` works without kprobes",
        ],
        never: &["run as root", "with CAP_"],
    },
    Case {
        number: "I05: the module's types cannot be read, the kernel's can: the driver's release tells as much",
        files: &[
            ("sys/module/nvidia_uvm/version", "580.159.04\n"),
            // A folder in place of the file: reading it fails, for root too.
            ("sys/kernel/btf/nvidia_uvm/x", ""),
        ],
        said: with_own_kernel,
        says: &["table, driver 580"],
        never: &["SYS_ADMIN", "refused"],
    },
    Case {
        number: "I07: the function is there only as the compiler's copy",
        files: &[(
            "proc/kallsyms",
            "0000000000000000 t uvm_perf_thrashing_x.isra.0\t[nvidia_uvm]\n\
             0000000000000000 t uvm_perf_thrashing_y.part.0\t[nvidia_uvm]\n\
             0000000000000000 t uvm_perf_thrashing_y.cold\t[nvidia_uvm]\n",
        )],
        said: |root| {
            let found = |name| symbols::absent(root, name).reason;
            format!("{}. {}", found("uvm_perf_thrashing_x"), found("uvm_perf_thrashing_y"))
        },
        says: &[
            "uvm_perf_thrashing_x only as uvm_perf_thrashing_x.isra.0, whose arguments may be others",
            "neither the kernel nor its modules have uvm_perf_thrashing_y",
        ],
        never: &["uvm_perf_thrashing_y.part"],
    },
    Case {
        number: "I15: nvidia_uvm is loaded and has no types of its own",
        files: &[("sys/module/nvidia_uvm/version", "550.163.01\n")],
        said: with_own_kernel,
        says: &["table, driver 550"],
        never: &["refused"],
    },
];

/// Where the layout of the driver on `root` is from, with the types of the kernel that runs this test.
fn with_own_kernel(root: &Path) -> String {
    let types = root.join("sys/kernel/btf");
    std::fs::create_dir_all(&types).expect("made");
    std::os::unix::fs::symlink("/sys/kernel/btf/vmlinux", types.join("vmlinux")).expect("linked");
    match uvm::layout::Layout::read(root) {
        Ok(layout) => layout.from,
        Err(e) => format!("refused: {e}"),
    }
}

fn wrong(case: &Case) -> Vec<String> {
    let root = tempfile::tempdir().expect("a folder");
    for (path, text) in case.files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    let said = (case.said)(root.path());
    let missing = case.says.iter().filter(|part| !said.contains(**part));
    let missing = missing.map(|part| format!("{}: {part:?} is not in {said}", case.number));
    let too_much = case.never.iter().filter(|part| said.contains(**part));
    let too_much = too_much.map(|part| format!("{}: {part:?} is in {said}", case.number));
    missing.chain(too_much).collect()
}

#[test]
fn every_host_on_which_agents_fail_gets_its_right_answer() {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        eprintln!("skipped: this kernel has no BTF");
        return;
    }
    let wrong: Vec<String> = CASES.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
