//! The element types of the format.

/// An element type, by the name it has in a header. Sizes are in bits: some are smaller than a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dtype {
    /// As headers spell it.
    pub name: &'static str,
    /// Bits of an element.
    pub bits: u64,
}

/// Every type of safetensors 0.8 (its `Dtype`), smallest first.
const ALL: [Dtype; 22] = {
    const fn of(name: &'static str, bits: u64) -> Dtype {
        Dtype { name, bits }
    }
    [
        of("F4", 4),
        of("F6_E2M3", 6),
        of("F6_E3M2", 6),
        of("BOOL", 8),
        of("U8", 8),
        of("I8", 8),
        of("F8_E5M2", 8),
        of("F8_E4M3", 8),
        of("F8_E8M0", 8),
        of("F8_E4M3FNUZ", 8),
        of("F8_E5M2FNUZ", 8),
        of("I16", 16),
        of("U16", 16),
        of("F16", 16),
        of("BF16", 16),
        of("I32", 32),
        of("U32", 32),
        of("F32", 32),
        of("C64", 64),
        of("F64", 64),
        of("I64", 64),
        of("U64", 64),
    ]
};

impl Dtype {
    /// The type of that name.
    pub fn named(name: &str) -> Option<Dtype> {
        ALL.into_iter().find(|d| d.name == name)
    }
}
