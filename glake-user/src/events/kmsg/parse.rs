//! What one line of the kernel log says of NVMe controllers and of Intel's IOMMU. Total: any other text says nothing.
//!
//! NVMe: `nvme_timeout`, `nvme_warn_reset` and the resets of drivers/nvme/host/{pci,core,multipath,ioctl}.c, Linux 5.4 to
//! 6.12. DMAR: `dmar_fault_do_one` of drivers/iommu/intel/dmar.c, which names the device without a PCI domain up to 6.12
//! and with it in 7.3, and spells numbers in four ways. Faults of interrupt remapping are not told: they are no
//! translation faults.

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// About an NVMe controller. One line may report a timeout and the reset that follows.
    Nvme {
        /// `nvme0`.
        controller: String,
        /// A command timed out.
        timeout: bool,
        /// The controller is being reset.
        reset: bool,
        /// The kernel's words after the controller's name.
        detail: String,
    },
    /// Intel's IOMMU refused a device's access.
    Dmar(Fault),
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// PCI domain, where the kernel prints it.
    pub domain: Option<u32>,
    /// Bus, device and function as sysfs spells them: `01:00.0`.
    pub device: String,
    /// The I/O virtual address.
    pub iova: u64,
    /// The reason's number.
    pub reason: u32,
    /// Access and reason in the kernel's words.
    pub detail: String,
}

/// Reads one line.
pub fn line(text: &str) -> Option<Said> {
    nvme(text).or_else(|| dmar(text).map(Said::Dmar))
}

fn nvme(text: &str) -> Option<Said> {
    let (controller, words) = text.strip_prefix("nvme ")?.split_once(": ")?;
    let number = controller.strip_prefix("nvme")?;
    if number.is_empty() || number.len() > 5 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // The driver finds a controller dead when it handles the timeout of a command (nvme_timeout calls nvme_warn_reset).
    let down = words.starts_with("controller is down; will reset");
    let timeout = down || words.starts_with("I/O ") && timed_out(words);
    let reset = down
        || words.starts_with("resetting controller")
        || words.ends_with(", reset controller")
        || words.trim_end_matches('.').ends_with(", resetting controller");
    let said = Said::Nvme { controller: controller.to_owned(), timeout, reset, detail: words.to_owned() };
    (timeout || reset).then_some(said)
}

/// `... QID 3 timeout` at the end or before a comma.
fn timed_out(words: &str) -> bool {
    words.split_once(" QID ").is_some_and(|(_, rest)| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.strip_prefix(" timeout").is_some_and(|end| end.is_empty() || end.starts_with(','))
    })
}

fn dmar(text: &str) -> Option<Fault> {
    let rest = text.strip_prefix("DMAR:")?.trim_start().strip_prefix('[')?;
    let (access, rest) = rest.split_once("] Request device [")?;
    let access = access.strip_prefix("DMA ")?;
    let (device, rest) = rest.split_once(']')?;
    let (domain, device) = address(device)?;
    let (pasid, rest) = rest.split_once("fault addr ")?;
    let (iova, rest) = rest.trim_start().split_once(' ')?;
    let iova = u64::from_str_radix(iova.strip_prefix("0x").unwrap_or(iova), 16).ok()?;
    let (number, words) = rest.trim_start().strip_prefix("[fault reason ")?.split_once(']')?;
    // With 0x since 5.14; before, decimal with a leading zero.
    let reason = match number.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => number.parse().ok()?,
    };
    let pasid = match pasid.trim() {
        "" => String::new(),
        pasid => format!(" {pasid}"),
    };
    let detail = format!("DMA {access}{pasid}, reason 0x{reason:02x} {}", words.trim());
    Some(Fault { domain, device, iova, reason, detail: detail.trim_end().to_owned() })
}

/// `01:00.0` or `0000:01:00.0`.
fn address(text: &str) -> Option<(Option<u32>, String)> {
    let known = match text.matches(':').count() {
        1 => crate::pci::sysfs(&format!("0000:{text}"))?,
        _ => crate::pci::sysfs(text)?,
    };
    let (domain, device) = known.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok().filter(|_| text.matches(':').count() == 2);
    Some((domain, device.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(words: &str) -> Option<(bool, bool)> {
        match line(&format!("nvme nvme12: {words}"))? {
            Said::Nvme { controller, timeout, reset, detail } => {
                assert_eq!((controller.as_str(), detail.as_str()), ("nvme12", words));
                Some((timeout, reset))
            }
            Said::Dmar(_) => None,
        }
    }

    #[test]
    fn each_spelling_of_a_timeout_is_one() {
        for words in [
            "I/O tag 12 (100c) QID 3 timeout, completion polled",
            "I/O tag 12 (100c) QID 0 timeout, disable controller",
            "I/O tag 12 (100c) opcode 0x2 (Read) QID 3 timeout, aborting req_op:READ(0) size:4096",
            "I/O tag 12 (100c) type 4 opcode 0x2 (Read) QID 3 timeout",
            "I/O 412 QID 9 timeout, aborting",
            "I/O 258 (I/O Cmd) QID 4 timeout, aborting",
        ] {
            assert_eq!(told(words), Some((true, false)), "{words}");
        }
    }

    #[test]
    fn each_way_to_a_reset_is_one_and_a_timeout_too_where_it_is() {
        for words in [
            "I/O 12 QID 1 timeout, reset controller",
            "I/O tag 12 (100c) opcode 0x6 (Identify) QID 0 timeout, reset controller",
            "controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
            "controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (134)",
        ] {
            assert_eq!(told(words), Some((true, true)), "{words}");
        }
        for words in [
            "resetting controller",
            "resetting controller due to persistent internal error",
            "Fw activation timeout, reset controller",
            "ANATT timeout, resetting controller.",
            "frozen state error detected, reset controller",
        ] {
            assert_eq!(told(words), Some((false, true)), "{words}");
        }
    }

    #[test]
    fn other_lines_of_the_driver_say_neither() {
        for words in [
            "Shutdown timeout set to 10 seconds",
            "12/0/0 default/read/poll queues",
            "Disabling device after reset failure: -19",
            "Abort status: 0x0",
            "restart after slot reset",
            "controller capabilities changed, reset may be required to take effect.",
            "I/O tag 12 QID 3 timeouts",
        ] {
            assert_eq!(told(words), None, "{words}");
        }
        for text in [
            "nvme 0000:01:00.0: resetting controller",
            "nvme nvme: resetting controller",
            "nvme nvme0n1: resetting controller",
            "app said: nvme nvme0: resetting controller",
            "",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }

    fn fault(text: &str) -> (Option<u32>, String, u64, u32, String) {
        match line(text) {
            Some(Said::Dmar(f)) => (f.domain, f.device, f.iova, f.reason, f.detail),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_fault_is_read_in_every_spelling() {
        let new = "DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0x700000000 [fault reason 0x05] PTE Write access is not set";
        let words = "DMA Write NO_PASID, reason 0x05 PTE Write access is not set";
        assert_eq!(fault(new), (None, "01:00.0".into(), 0x7_0000_0000, 5, words.into()));
        let newest = new.replace("[01:00.0]", "[10000:01:00.0]");
        assert_eq!(fault(&newest), (Some(0x10000), "01:00.0".into(), 0x7_0000_0000, 5, words.into()));
        let old = "DMAR: [DMA Read] Request device [3b:1f.7] PASID ffffffff fault addr ffff000 [fault reason 12] non-zero reserved fields in PTE";
        let words = "DMA Read PASID ffffffff, reason 0x0c non-zero reserved fields in PTE";
        assert_eq!(fault(old), (None, "3b:1f.7".into(), 0xffff000, 12, words.into()));
        let oldest = "DMAR:[DMA Write] Request device [03:00.0] fault addr 0 [fault reason 02] Present bit in context entry is clear";
        assert_eq!(fault(oldest).4, "DMA Write, reason 0x02 Present bit in context entry is clear");
    }

    #[test]
    fn what_is_no_translation_fault_is_none() {
        for text in [
            "DMAR: DRHD: handling fault status reg 2",
            "DMAR: [INTR-REMAP] Request device [01:00.0] fault index 0x1f [fault reason 0x22] Present field in the IRTE entry is clear",
            "DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0x7",
            "DMAR: [DMA Write NO_PASID] Request device [01:20.0] fault addr 0x7 [fault reason 0x05] x",
            "DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0xfffffffffffffffff [fault reason 0x05] x",
            "DMAR: [DMA Write NO_PASID] Request device [] fault addr 0x7 [fault reason 0x05] x",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }

    const REAL: [&str; 3] = [
        "nvme nvme0: I/O tag 12 (100c) opcode 0x2 (Read) QID 3 timeout, aborting req_op:READ(0) size:4096",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        "DMAR: [DMA Write NO_PASID] Request device [0000:01:00.0] fault addr 0x700000000 [fault reason 0x05] PTE",
    ];

    proptest! {
        #[test]
        fn any_text_says_something_or_nothing(text in "\\PC{0,120}") {
            let _ = line(&text);
            let _ = line(&format!("nvme nvme0: I/O {text}"));
            let _ = line(&format!("DMAR: [DMA Read] Request device [{text}"));
        }

        #[test]
        fn a_damaged_line_never_panics(which in 0..REAL.len(), at in 0usize..110, with: char, cut in 0usize..110) {
            let mut chars: Vec<char> = REAL[which].chars().collect();
            if let Some(c) = chars.get_mut(at) { *c = with; }
            chars.truncate(cut);
            let _ = line(&chars.into_iter().collect::<String>());
        }

        #[test]
        fn numbers_of_a_fault_come_back(iova: u64, reason in 0u32..256, bus: u8, device in 0u8..32, function in 0u8..8) {
            let text = format!("DMAR: [DMA Read NO_PASID] Request device [{bus:02x}:{device:02x}.{function}] fault addr 0x{iova:x} [fault reason 0x{reason:02x}] x");
            let found = fault(&text);
            prop_assert_eq!((found.2, found.3), (iova, reason));
            prop_assert_eq!(found.1, format!("{bus:02x}:{device:02x}.{function}"));
        }
    }
}
