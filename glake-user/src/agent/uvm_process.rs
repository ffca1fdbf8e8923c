//! The source that needs no probe: the driver's event queue, by which `glake uvm` watches one process. The agent opens nothing
//! for it and only says whether it would work.

use crate::{
    events::uvm::coverage::{Answer, one_process},
    telemetry::state::{Coverage, Watched},
};
use std::path::Path;

/// Its line beside those of the probes.
pub(super) fn coverage(root: &Path) -> Coverage {
    let loaded = root.join("sys/module/nvidia_uvm").exists();
    let refused = if loaded { Watched::No } else { Watched::Off };
    let (state, how, missing) = match one_process(root) {
        Answer::Yes(how) => (Watched::Yes, vec![how], Vec::new()),
        Answer::No { reason, remedy } => (refused, Vec::new(), vec![format!("{reason} -> {remedy}")]),
        Answer::CannotTell(error) => (refused, Vec::new(), vec![format!("cannot tell: {error}")]),
    };
    Coverage { family: "uvm_process".to_owned(), state, how, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_without_the_module_and_no_with_a_reason_where_it_cannot_work() {
        let dir = tempfile::tempdir().expect("a folder");
        let without = coverage(dir.path());
        assert_eq!(without.state, Watched::Off);
        assert!(without.missing[0].contains("not loaded"), "{without:?}");
        let module = dir.path().join("sys/module/nvidia_uvm");
        std::fs::create_dir_all(&module).expect("made");
        std::fs::write(module.join("version"), "620.05\n").expect("written");
        let unknown = coverage(dir.path());
        assert_eq!(unknown.state, Watched::No);
        assert!(unknown.missing[0].contains("620.05") && unknown.missing[0].contains(" -> "), "{unknown:?}");
    }
}
