//! Which events the driver is asked for. Each one costs the watched program something; `docs/uvm.md` says how much.

use crate::error::{Error, Kind, Result};
use crate::events::uvm::entry::kind;

const fn bits(kinds: &[u8]) -> u64 {
    let mut mask = 0;
    let mut i = 0;
    while i < kinds.len() {
        mask |= 1 << kinds[i];
        i += 1;
    }
    mask
}

/// The rare ones: fatal faults, thrashing, throttling; and one replay a batch, one event a CPU fault.
pub(super) const LIGHT: u64 = bits(&[
    kind::CPU_FAULT,
    kind::REPLAY,
    kind::FATAL,
    kind::THRASHING,
    kind::THROTTLING_START,
    kind::THROTTLING_END,
]);
/// And each page migration.
pub(super) const MOVES: u64 =
    LIGHT | bits(&[kind::MIGRATION, kind::MAP_REMOTE, kind::READ_DUPLICATE, kind::READ_DUPLICATE_INVALIDATE]);
/// And each GPU fault: everything there is.
pub(super) const ALL: u64 = MOVES | bits(&[kind::GPU_FAULT, kind::OVERFLOW, kind::PAGE_SIZE, kind::EVICTION]);

/// The masks with a name, cheapest first.
pub(super) const NAMED: [(&str, u64); 3] = [("light", LIGHT), ("moves", MOVES), ("all", ALL)];

/// Reads `all`, `moves`, `light`, or event names with commas between them.
///
/// # Errors
/// `Misuse` with the names that there are.
pub(super) fn parse(text: &str) -> Result<u64> {
    text.split(',').map(str::trim).try_fold(0, |mask, word| {
        let named = NAMED.iter().find(|(name, _)| *name == word).map(|(_, m)| *m);
        let single = || kind::NAMES.iter().find(|(name, _)| *name == word).map(|(_, n)| 1 << n);
        named.or_else(single).map(|m| mask | m).ok_or_else(|| {
            let names: Vec<&str> =
                NAMED.iter().map(|(n, _)| *n).chain(kind::NAMES.iter().map(|(n, _)| *n)).collect();
            Error::new(Kind::Misuse, format!("no event is called {word:?}")).remedy(names.join(", "))
        })
    })
}

/// The words for a mask.
pub(super) fn words(mask: u64) -> String {
    if let Some((name, _)) = NAMED.iter().find(|(_, m)| *m == mask) {
        return (*name).to_owned();
    }
    let names: Vec<&str> =
        kind::NAMES.iter().filter(|(_, n)| mask >> n & 1 == 1).map(|(name, _)| *name).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_read_and_print() {
        assert_eq!(parse("all").expect("known"), ALL);
        assert_eq!(parse("fatal, gpu-fault").expect("known"), 1 << 6 | 1 << 3);
        assert_eq!(words(parse("fatal,gpu-fault").expect("known")), "gpu-fault,fatal");
        assert_eq!(words(MOVES), "moves");
        assert!(parse("").is_err());
        let error = parse("faults").expect_err("unknown");
        assert!(error.remedy_text().expect("names").contains("cpu-fault"));
    }

    #[test]
    fn each_named_mask_holds_the_cheaper_ones() {
        assert_eq!(ALL & MOVES, MOVES);
        assert_eq!(MOVES & LIGHT, LIGHT);
        assert_eq!(ALL, (1 << 15) - 2, "types 1 to 14");
    }
}
