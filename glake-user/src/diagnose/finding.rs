//! What is wrong on this host now, beyond single events: each with what was seen and what to do.

use crate::events::kmsg::trouble::{Kind, Trouble};

/// How soon somebody should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; nothing is broken.
    Info,
    /// Within a day.
    Ticket,
    /// Now.
    Page,
}

impl Severity {
    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Ticket => "ticket",
            Severity::Page => "page",
        }
    }
}

/// One finding. Pure: when it began is the business of whoever keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name, a label value.
    pub rule: &'static str,
    /// How soon somebody should look.
    pub severity: Severity,
    /// The GPU meant, where it is one.
    pub uuid: Option<String>,
    /// Its PCI address as sysfs spells it.
    pub pci: Option<String>,
    /// In one sentence.
    pub what: String,
    /// What was seen.
    pub evidence: Vec<String>,
    /// What to do.
    pub do_now: String,
}

/// What a report of the kernel about the managed-memory module means. `hmm_off`: whether HMM is switched off; `None`: not known.
pub fn of_kernel(trouble: &Trouble, hmm_off: Option<bool>) -> Finding {
    let hmm = match hmm_off {
        Some(true) => "HMM is off already (uvm_disable_hmm)",
        Some(false) => "HMM is not switched off (uvm_disable_hmm=N)",
        None => "whether HMM is on cannot be told",
    };
    let task = trouble.task.as_deref().unwrap_or("a task that is not named");
    let who = trouble.pid.map_or_else(|| task.to_owned(), |pid| format!("{task} (pid {pid})"));
    let evidence =
        vec![format!("kernel log: {} in the trace of {who}", trouble.frames.join(" < ")), hmm.to_owned()];
    let switch_off = if hmm_off == Some(true) {
        ""
    } else {
        ", and load nvidia_uvm with uvm_disable_hmm=1 from then on: the first thing to switch off"
    };
    let (rule, what, do_now) = match trouble.kind {
        Kind::BadPage => (
            "uvm_kernel_memory_corrupted",
            "the kernel found memory corrupted that NVIDIA's managed-memory module gave back: nothing on this host can be \
             trusted any more",
            format!(
                "drain this host and restart it{switch_off}. The cause is not known: reports of it are open \
                 (open-gpu-kernel-modules 968); intel_iommu=on iommu=pt was tried there too"
            ),
        ),
        Kind::Stall if trouble.evicting => (
            "uvm_stuck_in_eviction",
            "NVIDIA's managed-memory module spins while it pushes memory out of the GPU: not a busy GPU",
            format!(
                "restart this host: a reset of the GPU is refused while the task spins, and trying again does not help. Then \
                 use less managed memory than the GPU has{switch_off}"
            ),
        ),
        Kind::Stall => (
            "uvm_stuck",
            "a CPU does not come back from NVIDIA's managed-memory module",
            format!("restart this host if it does not end; `glake who` shows the task{switch_off}"),
        ),
    };
    Finding { rule, severity: Severity::Page, uuid: None, pci: None, what: what.into(), evidence, do_now }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(kind: Kind, evicting: bool) -> Trouble {
        let frames = vec!["uvm_hmm_devmem_free".to_owned()];
        Trouble { kind, task: Some("python3".into()), pid: Some(7), evicting, frames }
    }

    /// Case G09.
    #[test]
    fn corrupted_kernel_memory_is_severe_names_hmm_first_and_claims_no_cause() {
        let found = of_kernel(&trouble(Kind::BadPage, false), Some(false));
        assert_eq!((found.rule, found.severity), ("uvm_kernel_memory_corrupted", Severity::Page));
        assert!(
            found.do_now.contains("uvm_disable_hmm=1") && found.do_now.contains("first thing"),
            "{}",
            found.do_now
        );
        assert!(found.do_now.contains("not known") && found.do_now.contains("open"), "{}", found.do_now);
        let off = of_kernel(&trouble(Kind::BadPage, false), Some(true));
        assert!(
            !off.do_now.contains("uvm_disable_hmm=1"),
            "what is off need not be switched off: {}",
            off.do_now
        );
        assert!(off.evidence.iter().any(|e| e.contains("off already")));
    }

    /// Case G01.
    #[test]
    fn a_thread_that_spins_in_eviction_is_no_busy_gpu_and_wants_no_reset() {
        let found = of_kernel(&trouble(Kind::Stall, true), None);
        assert!(found.what.contains("not a busy GPU"), "{}", found.what);
        assert!(found.do_now.contains("restart this host") && found.do_now.contains("does not help"));
        assert!(found.do_now.contains("uvm_disable_hmm=1"));
        assert_eq!(of_kernel(&trouble(Kind::Stall, false), None).rule, "uvm_stuck");
    }
}
