//! The allocator's options.

/// How the heap behaves. The defaults are the product's; each field's doc names its option.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `allocator.max_bytes`: physical memory this heap may hold. A limit, not a reservation. `None`: the device's.
    pub max_bytes: Option<u64>,
    /// `allocator.remap_slack_ratio`: where a request fits nowhere, new physical memory is made instead of remapping
    /// while `reserved <= peak allocated * (1 + ratio)`.
    pub remap_slack_ratio: f64,
    /// `allocator.handle_bytes`: size of the first physical handles for blocks of 1 MiB and more; later ones are larger.
    pub handle_bytes: u64,
    /// Requests below this are kept in the small-block pool.
    pub small_bytes: u64,
    /// `allocator.ahead_bytes`: physical memory made ahead by the reclaimer while the heap grows. Counts as reserved.
    pub ahead_bytes: u64,
    /// `allocator.zombie_bytes`: address space that may wait to be unmapped before allocations wait for it.
    pub zombie_bytes: u64,
    /// Same-stream memory is mapped a second time at once, while earlier work may still run. Off: remaps wait for it.
    pub remap_while_busy: bool,
    /// How long an allocation may wait for other streams before it is out of memory, in nanoseconds.
    pub wait_ns: u64,
    /// `checks`: guard ranges, history of each pointer, strict frees.
    pub checks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_bytes: None,
            remap_slack_ratio: 0.0,
            handle_bytes: 8 << 20,
            small_bytes: 1 << 20,
            ahead_bytes: 0,
            zombie_bytes: 64 << 30,
            remap_while_busy: true,
            wait_ns: 2_000_000_000,
            checks: false,
        }
    }
}
