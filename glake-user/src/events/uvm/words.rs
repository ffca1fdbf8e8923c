//! The numbers of the driver's event queue in words.

use serde::Serialize;

/// A processor as the queue names it: 0 is the CPU, others index the
/// driver's table of GPU UUIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Processor(pub u16);

impl Processor {
    /// Is it the CPU?
    pub fn is_cpu(self) -> bool {
        self.0 == 0
    }
}

/// How memory was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Atomic.
    Atomic,
    /// A prefetch instruction.
    Prefetch,
    /// A number this GLake does not know.
    Other(u8),
}

impl Access {
    pub(super) fn of(n: u8) -> Access {
        match n {
            1 => Access::Read,
            2 => Access::Write,
            3 => Access::Atomic,
            4 => Access::Prefetch,
            n => Access::Other(n),
        }
    }

    /// The word for labels and screens.
    pub fn word(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic",
            Access::Prefetch => "prefetch",
            Access::Other(_) => "other",
        }
    }
}

/// Why pages moved. In the driver's words `on_demand` is "coherence".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The program asked: cudaMemPrefetchAsync and the like.
    User,
    /// A processor touched pages that were elsewhere.
    OnDemand,
    /// The driver guessed that they would be touched next.
    Prefetch,
    /// GPU memory was short.
    Eviction,
    /// Access counters showed that a GPU keeps reading them from afar.
    AccessCounters,
    /// A number this GLake does not know.
    Other(u8),
}

impl Cause {
    pub(super) fn of(n: u8) -> Cause {
        match n {
            1 => Cause::User,
            2 => Cause::OnDemand,
            3 => Cause::Prefetch,
            4 => Cause::Eviction,
            5 => Cause::AccessCounters,
            n => Cause::Other(n),
        }
    }

    /// Between two NUMA nodes of the host the driver writes its internal cause (`uvm_make_resident_cause_t`) without
    /// translating it: `uvm_tools_record_migration_cpu_to_cpu`, in 550 and 580 alike; seen in the lab.
    fn of_host(n: u8) -> Cause {
        match n {
            0 | 1 => Cause::OnDemand,
            2 => Cause::AccessCounters,
            3 => Cause::Prefetch,
            4 => Cause::Eviction,
            5..=8 => Cause::User,
            n => Cause::Other(n),
        }
    }

    pub(super) fn between(source: Processor, target: Processor, n: u8) -> Cause {
        if source.is_cpu() && target.is_cpu() { Cause::of_host(n) } else { Cause::of(n) }
    }

    /// The word for labels and screens.
    pub fn word(self) -> &'static str {
        match self {
            Cause::User => "user",
            Cause::OnDemand => "on_demand",
            Cause::Prefetch => "prefetch",
            Cause::Eviction => "eviction",
            Cause::AccessCounters => "access_counters",
            Cause::Other(_) => "other",
        }
    }
}

/// Why the driver gave a fault up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FatalReason {
    /// No such address.
    InvalidAddress,
    /// The mapping forbids the access.
    InvalidPermissions,
    /// A fault of a kind that cannot be serviced.
    InvalidFaultType,
    /// No memory.
    OutOfMemory,
    /// The driver failed.
    InternalError,
    /// Not allowed in this state.
    InvalidOperation,
    /// A number this GLake does not know.
    Other(u8),
}

impl FatalReason {
    /// From the driver's number.
    pub fn of(n: u8) -> FatalReason {
        match n {
            1 => FatalReason::InvalidAddress,
            2 => FatalReason::InvalidPermissions,
            3 => FatalReason::InvalidFaultType,
            4 => FatalReason::OutOfMemory,
            5 => FatalReason::InternalError,
            6 => FatalReason::InvalidOperation,
            n => FatalReason::Other(n),
        }
    }

    /// The word for labels and screens.
    pub fn word(self) -> &'static str {
        match self {
            FatalReason::InvalidAddress => "invalid_address",
            FatalReason::InvalidPermissions => "invalid_permissions",
            FatalReason::InvalidFaultType => "invalid_fault_type",
            FatalReason::OutOfMemory => "out_of_memory",
            FatalReason::InternalError => "internal_error",
            FatalReason::InvalidOperation => "invalid_operation",
            FatalReason::Other(_) => "other",
        }
    }
}

/// The driver's name of a GPU fault type.
pub fn fault_type_word(n: u8) -> &'static str {
    const WORDS: [&str; 17] = [
        "invalid",
        "invalid_pde",
        "invalid_pte",
        "write",
        "atomic",
        "invalid_pde_size",
        "limit_violation",
        "unbound_inst_block",
        "priv_violation",
        "pitch_mask_violation",
        "work_creation",
        "unsupported_aperture",
        "compression_failure",
        "unsupported_kind",
        "region_violation",
        "poison",
        "cc_violation",
    ];
    WORDS.get(usize::from(n)).copied().unwrap_or("other")
}
