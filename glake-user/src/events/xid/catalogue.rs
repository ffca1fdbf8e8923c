//! What each Xid means, what to do, and which other codes it merely follows.
//!
//! Source of meanings and actions: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, codes to 161, as of
//! 2025-10), and `nverror.h` of the open kernel modules (names of 162 to 176, for which no action is published).
//! `follows` is our reading of public incidents; `docs/xid.md` lists them.

/// What to do first, in the words of the metric label `action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Restart the application.
    RestartApp,
    /// Reset the GPU.
    ResetGpu,
    /// Restart the machine.
    RestartNode,
    /// Restart the virtual machine.
    RestartVm,
    /// Get the hardware serviced.
    ContactSupport,
    /// Follow the NVLink procedure.
    CheckNvlink,
    /// Look at the other Xid that this one belongs to.
    SeeOther,
    /// Nothing.
    Ignore,
    /// NVIDIA publishes no action.
    Unknown,
}

impl Action {
    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Action::RestartApp => "restart_app",
            Action::ResetGpu => "reset_gpu",
            Action::RestartNode => "restart_node",
            Action::RestartVm => "restart_vm",
            Action::ContactSupport => "contact_support",
            Action::CheckNvlink => "check_nvlink",
            Action::SeeOther => "see_other",
            Action::Ignore => "ignore",
            Action::Unknown => "unknown",
        }
    }

    /// One sentence for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Action::RestartApp => "restart the application",
            Action::ResetGpu => "drain the GPU and reset it",
            Action::RestartNode => "restart the machine; if it comes back, have the hardware serviced",
            Action::RestartVm => "restart the virtual machine",
            Action::ContactSupport => "drain the GPU and have it serviced",
            Action::CheckNvlink => "follow NVIDIA's NVLink procedure for this code",
            Action::SeeOther => "look at the other Xid of this GPU: this one only follows it",
            Action::Ignore => "nothing, unless it repeats",
            Action::Unknown => "NVIDIA publishes no action for this code: contact support if it repeats",
        }
    }

    /// Is it one that pages somebody?
    pub fn needs_hands(self) -> bool {
        matches!(self, Action::ResetGpu | Action::RestartNode | Action::ContactSupport)
    }
}

/// One code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The code.
    pub code: u32,
    /// What it means, short.
    pub meaning: &'static str,
    /// What to do first.
    pub action: Action,
    /// Says more than the action alone can.
    pub note: &'static str,
    /// Codes after which this one is a consequence, not news. [`ANY`]: after every code.
    pub follows: &'static [u32],
}

/// After every code.
pub const ANY: &[u32] = &[u32::MAX];

/// The code used for a GPU that fell off the bus when the driver gave none: the same severity and action as 79.
pub const FELL_OFF: u32 = 79;

const fn entry(code: u32, meaning: &'static str, action: Action) -> Entry {
    Entry { code, meaning, action, note: "", follows: &[] }
}

impl Entry {
    const fn note(self, note: &'static str) -> Entry {
        Entry { note, ..self }
    }

    const fn follows(self, follows: &'static [u32]) -> Entry {
        Entry { follows, ..self }
    }
}

use Action::{
    CheckNvlink, ContactSupport, Ignore, ResetGpu, RestartApp, RestartNode, RestartVm, SeeOther, Unknown,
};

/// Every code known, ascending.
pub const CATALOGUE: &[Entry] = &[
    entry(13, "graphics engine exception", RestartApp)
        .note("usually the program: an address out of range or an illegal instruction"),
    entry(31, "GPU MMU page fault", RestartApp)
        .note("usually the program touched memory it had freed or never had; a UVM page fault is something else"),
    entry(32, "invalid or corrupted push buffer", RestartApp),
    entry(38, "driver firmware error", ContactSupport),
    entry(39, "copy engine exception", RestartApp),
    entry(40, "copy engine exception", RestartApp),
    entry(41, "copy engine exception", RestartApp),
    entry(42, "video processor exception", Ignore),
    entry(43, "the GPU stopped this program's work", Ignore).follows(ANY),
    entry(44, "fault during a context switch", Ignore),
    entry(45, "the driver cleaned up after an earlier error", SeeOther)
        .note("alone: restart the fabric manager if there is one")
        .follows(ANY),
    entry(46, "GPU timeout", ResetGpu),
    entry(48, "double-bit memory error (ECC)", ResetGpu)
        .note("drain first; 63 or 64 beside it say whether the row was remapped"),
    entry(54, "auxiliary power is not connected", ContactSupport),
    entry(61, "microcontroller breakpoint or warning", ResetGpu),
    entry(62, "microcontroller (PMU) halted", ResetGpu)
        .note("while it is halted a reset may be refused: then only a power cycle helps")
        .follows(&[48, 64, 79, 95]),
    entry(63, "memory row remapped or page retired", Ignore)
        .note("the remap worked and takes effect at the next reset; a count that keeps rising does not end there")
        .follows(&[48, 94, 95]),
    entry(64, "memory row remap or page retirement failed", ResetGpu)
        .note("a reset does not cure a bank without spare rows: replace the GPU if the failure flag stays set")
        .follows(&[48, 94, 95]),
    entry(65, "video processor exception", Ignore),
    entry(66, "illegal access by the driver", Ignore),
    entry(67, "illegal access by the driver", Ignore),
    entry(68, "video decoder exception", RestartApp),
    entry(69, "graphics class error", RestartApp),
    entry(74, "NVLink error", CheckNvlink),
    entry(79, "the GPU fell off the bus", RestartNode)
        .note("the log alone does not tell why: look at AER, power and temperature before it"),
    entry(80, "push buffer checksum mismatch", RestartApp),
    entry(92, "high rate of single-bit memory errors", Ignore),
    entry(93, "write-protected flash", Ignore),
    entry(94, "contained memory error", RestartApp)
        .note("only the program that touched it was ended; drain and reset when convenient")
        .follows(&[48]),
    entry(95, "uncontained memory error", ResetGpu).follows(&[48]),
    entry(109, "context switch timeout", ResetGpu),
    entry(110, "security fault", ResetGpu),
    entry(119, "no answer from the GPU's system processor (GSP RPC timeout)", ResetGpu).follows(&[62, 79, 120]),
    entry(120, "error on the GPU's system processor (GSP)", ResetGpu),
    entry(121, "chip-to-chip link error", Ignore),
    entry(122, "reading the SPI flash failed", Ignore),
    entry(123, "writing the SPI flash failed", Ignore),
    entry(124, "erasing the SPI flash failed", Ignore),
    entry(125, "error in the configuration storage (inforom)", Ignore),
    entry(136, "NVLink training failed", ResetGpu),
    entry(137, "NVLink privilege error", CheckNvlink),
    entry(140, "unrecovered memory error (ECC)", ResetGpu).follows(&[48, 95]),
    entry(141, "CUDA fast-path error", Ignore),
    entry(143, "GPU initialisation error", ResetGpu),
    entry(144, "NVLink error (SAW)", CheckNvlink),
    entry(145, "NVLink error (RLW)", CheckNvlink),
    entry(146, "NVLink error (TLW)", CheckNvlink),
    entry(147, "NVLink error (TREX)", CheckNvlink),
    entry(148, "NVLink error (NVLPW_CTRL)", CheckNvlink),
    entry(149, "NVLink error (NETIR)", CheckNvlink),
    entry(150, "NVLink error (MSE)", CheckNvlink),
    entry(151, "key rotation error", RestartVm),
    entry(152, "DLA memory error", Ignore),
    entry(153, "DLA timeout", Ignore),
    entry(154, "the recovery action of the GPU changed", SeeOther)
        .note("its text names the action that the driver now asks for")
        .follows(ANY),
    entry(155, "NVLink error defined by software", ResetGpu),
    entry(156, "a resource was retired", ResetGpu),
    entry(157, "retiring a resource failed", Ignore),
    entry(158, "fatal GPU timeout", ResetGpu),
    entry(159, "CHI non-data error", ResetGpu),
    entry(160, "a channel was retired", Ignore),
    entry(161, "retiring a channel failed", Ignore),
    entry(162, "power smoothing engaged again", Unknown),
    entry(163, "power smoothing disengaged", Unknown),
    entry(164, "power smoothing circuit is near its end of life", Unknown),
    entry(165, "power smoothing circuit is at its end of life", Unknown),
    entry(166, "NVLink encryption error", Unknown),
    entry(167, "fatal PCIe timeout", Unknown),
    entry(168, "less GPU memory than there should be", Unknown),
    entry(169, "security processor (SEC2) halted", Unknown),
    entry(170, "NVLink security error", Unknown),
    entry(171, "uncorrectable DRAM error: the place of a 48", Unknown).follows(&[48, 94, 95]),
    entry(172, "uncorrectable SRAM error: the place of a 48", Unknown).follows(&[48, 94, 95]),
    entry(173, "fatal chip-to-chip link failure", Unknown),
    entry(174, "a channel reset ended the process", Unknown),
    entry(175, "memory subsystem error", Unknown),
    entry(176, "correctable PCIe errors became a fault", Unknown),
];

/// The entry of `code`. `None`: not in the catalogue.
pub fn look_up(code: u32) -> Option<&'static Entry> {
    CATALOGUE.binary_search_by_key(&code, |e| e.code).ok().and_then(|i| CATALOGUE.get(i))
}

/// The action for `code`; unknown codes have none.
pub fn action(code: u32) -> Action {
    look_up(code).map_or(Unknown, |e| e.action)
}

/// What `code` means; unknown codes say so.
pub fn meaning(code: u32) -> &'static str {
    look_up(code).map_or("not in the catalogue of this GLake", |e| e.meaning)
}

/// Is `code` a consequence of an earlier `root`?
pub fn follows(code: u32, root: u32) -> bool {
    code != root && look_up(code).is_some_and(|e| e.follows == ANY || e.follows.contains(&root))
}

/// Codes of memory errors: one failing place shows as several of them.
pub fn is_memory(code: u32) -> bool {
    matches!(code, 48 | 63 | 64 | 92 | 94 | 95 | 140 | 171 | 172)
}

/// Codes whose counters exist at 0 from the start, so that the first one makes `increase()` see it.
pub fn actionable() -> impl Iterator<Item = &'static Entry> {
    CATALOGUE.iter().filter(|e| e.action.needs_hands())
}

/// The driver's words for the value of an Xid 154 (NVML's recovery action).
pub fn recovery_action(message: &str) -> Option<&'static str> {
    // "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    let to = message.rsplit_once(" to ")?.1;
    let number = to.strip_prefix("0x").unwrap_or(to);
    let digits = number.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(number.len());
    match u32::from_str_radix(&number[..digits], 16).ok()? {
        0 => Some("nothing"),
        1 => Some("reset the GPU"),
        2 => Some("restart the machine"),
        3 => Some("drain peer-to-peer traffic"),
        4 => Some("drain the GPU and reset it"),
        5 => Some("recover the IMEX domain"),
        6 => Some("reset the bus"),
        7 => Some("restart the system"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_ascending_and_each_has_words() {
        assert!(CATALOGUE.windows(2).all(|w| w[0].code < w[1].code));
        assert!(CATALOGUE.iter().all(|e| !e.meaning.is_empty()));
    }

    #[test]
    fn a_known_code_is_found_and_an_unknown_one_is_not_guessed() {
        assert_eq!(action(31), Action::RestartApp);
        assert_eq!(action(79), Action::RestartNode);
        assert_eq!(action(9999), Action::Unknown);
        assert!(meaning(9999).contains("not in the catalogue"));
    }

    #[test]
    fn codes_that_only_follow_never_need_hands() {
        for e in CATALOGUE.iter().filter(|e| e.follows == ANY) {
            assert!(!e.action.needs_hands(), "{}", e.code);
        }
        assert!(follows(45, 31) && follows(43, 13) && follows(119, 120) && follows(154, 79));
        assert!(!follows(120, 119) && !follows(31, 45) && !follows(48, 64));
        assert!(!follows(45, 45));
    }

    #[test]
    fn every_code_that_needs_hands_has_a_series_from_the_start_and_no_more_than_the_metric_allows() {
        let codes: Vec<u32> = actionable().map(|e| e.code).collect();
        assert!(codes.contains(&48) && codes.contains(&79) && codes.contains(&119));
        assert!(!codes.contains(&31) && !codes.contains(&43) && !codes.contains(&45));
        assert!(codes.len() <= 24, "{codes:?}");
    }

    #[test]
    fn the_recovery_action_is_read_from_the_text() {
        let text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)";
        assert_eq!(recovery_action(text), Some("restart the machine"));
        assert_eq!(recovery_action("GPU recovery action changed"), None);
        assert_eq!(recovery_action("from 0x0 to 0x99"), None);
    }
}
