//! Why a kernel function could not be probed.

use super::attach::Refusal;
use crate::sys::lockdown;
use std::path::Path;

/// The kernel knows no function of this name: not there, or only as a copy that the compiler made.
pub(crate) fn absent(root: &Path, function: &str) -> Refusal {
    // Names are readable by all; only addresses are hidden.
    let symbols = std::fs::read_to_string(root.join("proc/kallsyms")).unwrap_or_default();
    match copy_of(&symbols, function) {
        Some(copy) => Refusal::absent(format!(
            "the compiler left {function} only as {copy}, whose arguments may be others: not probed"
        )),
        None => Refusal::absent(format!("neither the kernel nor its modules have {function}")),
    }
}

/// `NAME.isra.N` and `NAME.constprop.N` are the function with other arguments; `.part.N` and `.cold` are pieces of it.
fn copy_of<'a>(symbols: &'a str, function: &str) -> Option<&'a str> {
    symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).find(|name| {
        let rest = name.strip_prefix(function).unwrap_or_default();
        rest.starts_with(".isra.") || rest.starts_with(".constprop.")
    })
}

/// The kernel allows no probes on functions.
pub(crate) fn refused(root: &Path, function: &str) -> Refusal {
    let mode = lockdown::read(root);
    let reason = match &mode {
        Some(mode) => format!("the kernel refuses a kprobe on {function} (tried); lockdown is {mode}"),
        None => format!("the kernel refuses a kprobe on {function} (tried); its lockdown cannot be read"),
    };
    let remedy = match mode.as_deref() {
        Some("none") => "run as root or with CAP_PERFMON, and look at kernel.perf_event_paranoid".to_owned(),
        Some("confidentiality") => {
            format!("only booting without lockdown helps (usually: Secure Boot off){}", instead(function))
        }
        _ => format!(
            "run as root or with CAP_PERFMON; under lockdown only booting without it (usually: Secure Boot off) \
             helps{}",
            instead(function)
        ),
    };
    Refusal::new(reason, Some(remedy))
}

/// What works without kprobes.
fn instead(function: &str) -> &'static str {
    match function {
        "nv_report_error" => ". The kernel log tells Xids without kprobes, as a lower bound",
        "dmar_fault" => ". /proc/interrupts tells fault interrupts without kprobes, as a lower bound",
        "viommu_fault_handler" => "",
        _ => ". `glake uvm --pid PID` works without kprobes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "0000000000000000 t uvm_perf_x.part.0\t[nvidia_uvm]\n\
        0000000000000000 t uvm_perf_x.cold\t[nvidia_uvm]\n0000000000000000 t uvm_perf_xy.isra.0\t[nvidia_uvm]\n\
        0000000000000000 t service_y.constprop.0\t[nvidia_uvm]\n";

    #[test]
    fn a_piece_of_a_function_is_not_the_function() {
        assert_eq!(copy_of(SYMBOLS, "uvm_perf_x"), None);
        assert_eq!(copy_of(SYMBOLS, "service_y"), Some("service_y.constprop.0"));
        assert_eq!(copy_of("", "service_y"), None);
    }

    #[test]
    fn a_copy_with_other_arguments_is_named_and_not_probed() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("proc")).expect("made");
        std::fs::write(root.path().join("proc/kallsyms"), SYMBOLS).expect("written");
        let why = absent(root.path(), "service_y");
        assert!(why.absent && why.reason.contains("service_y.constprop.0"), "{}", why.reason);
        assert!(absent(root.path(), "uvm_perf_x").reason.contains("neither"));
    }

    #[test]
    fn lockdown_is_named_and_capabilities_are_not_blamed_for_it() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(refused(root.path(), "f").reason.contains("cannot be read"));
        let security = root.path().join("sys/kernel/security");
        std::fs::create_dir_all(&security).expect("made");
        std::fs::write(security.join("lockdown"), "none [integrity] confidentiality\n").expect("written");
        let why = refused(root.path(), "f");
        assert!(why.reason.contains("lockdown is integrity"), "{}", why.reason);
        assert!(why.remedy.is_some_and(|r| r.contains("Secure Boot") && r.contains("glake uvm --pid")));
        assert!(refused(root.path(), "nv_report_error").remedy.is_some_and(|r| r.contains("kernel log")));
        std::fs::write(security.join("lockdown"), "[none] integrity confidentiality\n").expect("written");
        assert!(refused(root.path(), "f").remedy.is_some_and(|r| !r.contains("Secure Boot")));
    }
}
