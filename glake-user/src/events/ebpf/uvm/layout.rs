//! Where nvidia-uvm's structures hold what: from the module's own BTF where it was built with some, else from a table
//! by driver release. A release that is neither is refused: garbage is worse than nothing.

use crate::{
    error::{Error, Kind, Result},
    events::{
        ebpf::{
            direct::Functions,
            table::{self, Hook},
        },
        uvm::release::{self, Version},
    },
    sys::btf::Btf,
};
use glake_common::{
    NONE,
    uvm::layout::{COUNT, *},
};
use std::path::Path;

/// One offset for each line of [`glake_common::uvm::layout`].
pub(crate) type Words = [u32; COUNT];

/// What the programs need to know of this driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) words: Words,
    /// `module BTF` or `table, driver 550`.
    pub(crate) from: String,
    /// The driver, as it calls itself.
    pub(crate) version: String,
    /// The numbers of the functions that are probed. `None`: the module has no BTF.
    pub(crate) functions: Option<Functions>,
}

/// Structure and path of each word in BTF. Names are the same in every release from 535 to 595.
const MEMBERS: [(usize, &str, &str); 14] = [
    (EVENTS_SPACE, "uvm_perf_va_space_events_t", "va_space"),
    (FAULT_PROCESSOR, "uvm_perf_event_data_t", "fault.proc_id"),
    (FAULT_ENTRY, "uvm_perf_event_data_t", "fault.gpu.buffer_entry"),
    (FAULT_DUPLICATE, "uvm_perf_event_data_t", "fault.gpu.is_duplicate"),
    (CPU_WRITE, "uvm_perf_event_data_t", "fault.cpu.is_write"),
    (MIGRATION_TARGET, "uvm_perf_event_data_t", "migration.dst"),
    (MIGRATION_SOURCE, "uvm_perf_event_data_t", "migration.src"),
    (MIGRATION_BYTES, "uvm_perf_event_data_t", "migration.bytes"),
    (MIGRATION_CAUSE, "uvm_perf_event_data_t", "migration.cause"),
    (ENTRY_INSTANCES, "uvm_fault_buffer_entry_t", "num_instances"),
    (GPU_PARENT, "uvm_gpu_t", "parent"),
    (GPU_ID, "uvm_gpu_t", "id"),
    (GPU_PMM, "uvm_gpu_t", "pmm"),
    (PARENT_UUID, "uvm_parent_gpu_t", "uuid"),
];

/// Callbacks of `uvm_perf_va_space_events_t`: one list head for each of the 9 events, between the lock and `va_space`.
const CALLBACKS: u32 = 9 * 16;

impl Layout {
    /// The layout of the nvidia-uvm that is loaded on the host below `root`.
    ///
    /// # Errors
    /// `Missing` when it is not loaded; `Unsupported` for a release whose structures are not known.
    pub(crate) fn read(root: &Path) -> Result<Layout> {
        let version = release::loaded(root)?;
        let known = known(&version)?;
        let mut types = Btf::read(root)?;
        let lock = types.member("rw_semaphore", "").ok_or_else(|| {
            Error::new(Kind::Unsupported, "the kernel's BTF does not have the size of a rw_semaphore")
        })?;
        let text = version.to_string();
        if types.add_module(root, "nvidia_uvm").is_ok() {
            return Ok(Layout {
                words: from_btf(&types, known),
                from: "module BTF".into(),
                version: text,
                functions: Some(functions(&types)),
            });
        }
        let mut words = known;
        words[EVENTS_SPACE] = lock + CALLBACKS;
        let from = format!("table, driver {}", version.branch);
        Ok(Layout { words, from, version: text, functions: None })
    }
}

/// Those that a function of the module may call itself.
fn functions(types: &Btf) -> Functions {
    let direct = table::probes().flat_map(|e| e.hooks).filter(|h| h.is_direct());
    direct.filter_map(Hook::function).filter_map(|name| Some((name, types.function(name)?))).collect()
}

/// What BTF tells, and the table's word where it does not: bit fields need care, and the batch is always the same.
fn from_btf(btf: &Btf, table: Words) -> Words {
    let mut words = table;
    for (word, structure, path) in MEMBERS {
        words[word] = btf.member(structure, path).unwrap_or(NONE);
    }
    if let Some(bit) = btf.bit("uvm_fault_buffer_entry_t", "fault_access_type") {
        (words[ENTRY_WORD], words[ENTRY_ACCESS_BIT]) = (bit / 32 * 4, bit % 32);
    }
    if let Some(at) = btf.member("uvm_fault_service_batch_context_t", "num_cached_faults") {
        words[BATCH_CACHED] = at;
    }
    words
}

/// The offsets of a release. Read from NVIDIA's open kernel modules: `uvm_perf_events.h` has four layouts over all tags
/// from 535.43.02 to 595.45.04 (new ones came with 550.40.07, 565.57.01 and 580.65.06), the fault entry two (560). Where
/// structures depend on the kernel's configuration the word is [`NONE`], or is worked out by [`Layout::read`].
fn known(version: &Version) -> Result<Words> {
    let branch = version.branch;
    if !matches!(branch, 535 | 545 | 550 | 555 | 560 | 565 | 570 | 575 | 580 | 590 | 595) {
        return Err(Error::new(
            Kind::Unsupported,
            format!("the structures of nvidia-uvm {version} are not known to this GLake (known: 535 to 595)"),
        )
        .remedy("use a newer GLake; reading them by guess would print wrong numbers"));
    }
    let mut words = [NONE; COUNT];
    let mut set = |pairs: &[(usize, u32)]| pairs.iter().for_each(|(word, at)| words[*word] = *at);
    if branch >= 580 {
        set(&[(FAULT_PROCESSOR, 8), (FAULT_ENTRY, 16), (FAULT_DUPLICATE, 28), (CPU_WRITE, 28)]);
    } else {
        set(&[(FAULT_PROCESSOR, 16), (FAULT_ENTRY, 24), (FAULT_DUPLICATE, 36)]);
        // The CPU's number stands before it from 565 on.
        set(&[(CPU_WRITE, if branch >= 565 { 36 } else { 32 })]);
    }
    set(&[(MIGRATION_TARGET, 16), (MIGRATION_SOURCE, 20)]);
    set(match branch {
        535 | 545 => &[(MIGRATION_BYTES, 32), (MIGRATION_CAUSE, 44)],
        550..=575 => &[(MIGRATION_BYTES, 40), (MIGRATION_CAUSE, 52)],
        _ => &[(MIGRATION_BYTES, 40), (MIGRATION_CAUSE, 56)],
    });
    set(if branch >= 560 {
        &[(ENTRY_WORD, 44), (ENTRY_ACCESS_BIT, 6), (ENTRY_INSTANCES, 92)]
    } else {
        &[(ENTRY_WORD, 44), (ENTRY_ACCESS_BIT, 5), (ENTRY_INSTANCES, 84)]
    });
    set(&[(GPU_PARENT, 0), (PARENT_UUID, 80), (BATCH_CACHED, 28)]);
    set(&[(SERVICE_TAKES_GPU, u32::from(branch < 560))]);
    // Built and read for these; the branches between them were not.
    match branch {
        535 => set(&[(GPU_ID, 16)]),
        550 => set(&[(GPU_ID, 136)]),
        570 | 580 | 595 => set(&[(GPU_ID, 128)]),
        _ => {}
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        known(&Version::parse(text).expect("a version")).expect("known")
    }

    /// What pahole printed for nvidia_uvm 580.159.04 as it is loaded on an H200 machine, and for 550.163.01 in the lab.
    #[test]
    fn the_table_agrees_with_modules_that_were_built_with_btf() {
        let at = words("580.159.04");
        let expected = [
            (FAULT_PROCESSOR, 8),
            (FAULT_ENTRY, 16),
            (FAULT_DUPLICATE, 28),
            (CPU_WRITE, 28),
            (MIGRATION_TARGET, 16),
            (MIGRATION_SOURCE, 20),
            (MIGRATION_BYTES, 40),
            (MIGRATION_CAUSE, 56),
            (ENTRY_WORD, 44),
            (ENTRY_ACCESS_BIT, 6),
            (ENTRY_INSTANCES, 92),
            (GPU_PARENT, 0),
            (GPU_ID, 128),
            (PARENT_UUID, 80),
            (BATCH_CACHED, 28),
            (SERVICE_TAKES_GPU, 0),
        ];
        for (word, offset) in expected {
            assert_eq!(at[word], offset, "word {word}");
        }
        let at = words("550.163.01");
        assert_eq!((at[CPU_WRITE], at[MIGRATION_CAUSE], at[ENTRY_ACCESS_BIT], at[GPU_ID]), (32, 52, 5, 136));
    }

    #[test]
    fn each_layout_begins_with_the_branch_that_brought_it() {
        assert_eq!(words("545.29.06")[MIGRATION_CAUSE], 44);
        assert_eq!(words("550.40.07")[MIGRATION_CAUSE], 52);
        assert_eq!((words("560.35.03")[CPU_WRITE], words("565.57.01")[CPU_WRITE]), (32, 36));
        assert_eq!((words("555.58")[ENTRY_ACCESS_BIT], words("560.35.03")[ENTRY_ACCESS_BIT]), (5, 6));
        assert_eq!((words("575.64.05")[FAULT_ENTRY], words("580.65.06")[FAULT_ENTRY]), (24, 16));
        assert_eq!((words("555.58")[SERVICE_TAKES_GPU], words("560.35.03")[SERVICE_TAKES_GPU]), (1, 0));
    }

    #[test]
    fn what_was_not_built_and_read_is_not_guessed() {
        for text in ["545.29.06", "555.58", "560.35.03", "565.57.01", "575.64.05", "590.48.01"] {
            assert_eq!(words(text)[GPU_ID], NONE, "{text}");
        }
        assert_eq!(words("580.159.04")[GPU_PMM], NONE, "depends on the kernel's configuration");
    }

    #[test]
    fn an_unknown_release_is_refused_by_name() {
        for text in ["470.10.01", "540.10", "600.10.01", "620.05"] {
            let error = known(&Version::parse(text).expect("a version")).expect_err("unknown");
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains(text) && error.remedy_text().is_some(), "{error}");
        }
    }
}
