//! PCIe AER status bits in words (PCI Express Base Specification, sections 7.8.4.2 and 7.8.4.5).

const UNCORRECTABLE: [(u32, &str); 17] = [
    (4, "data link protocol error"),
    (5, "surprise down"),
    (12, "poisoned packet"),
    (13, "flow control protocol error"),
    (14, "completion timeout"),
    (15, "completer abort"),
    (16, "unexpected completion"),
    (17, "receiver overflow"),
    (18, "malformed packet"),
    (19, "ECRC error"),
    (20, "unsupported request"),
    (21, "ACS violation"),
    (22, "uncorrectable internal error"),
    (23, "multicast blocked packet"),
    (24, "atomic egress blocked"),
    (25, "prefix blocked"),
    (26, "poisoned packet blocked at egress"),
];

const CORRECTABLE: [(u32, &str); 8] = [
    (0, "receiver error"),
    (6, "bad packet"),
    (7, "bad data link packet"),
    (8, "replay number rollover"),
    (12, "replay timer timeout"),
    (13, "advisory non-fatal error"),
    (14, "corrected internal error"),
    (15, "header log overflow"),
];

/// The names of the set bits, or the number itself when none has a name. `severity`: `corrected`, else uncorrectable.
pub fn words(severity: &str, status: u32) -> String {
    let table: &[(u32, &str)] = if severity == "corrected" { &CORRECTABLE } else { &UNCORRECTABLE };
    let names: Vec<&str> =
        table.iter().filter(|(bit, _)| status >> bit & 1 == 1).map(|(_, name)| *name).collect();
    if names.is_empty() { format!("status 0x{status:08x}") } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case E19.
    #[test]
    fn the_same_bit_means_different_things_by_severity() {
        assert_eq!(words("fatal", 0x4020), "surprise down, completion timeout");
        assert_eq!(words("corrected", 0x1000), "replay timer timeout");
        assert_eq!(words("fatal", 0x1000), "poisoned packet");
        assert_eq!(words("nonfatal", 0), "status 0x00000000");
    }
}
