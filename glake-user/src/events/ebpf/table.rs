//! The probes: one entry each, a file for each family. What is not in this table does not exist.

mod block;
mod host;
mod nvme;
mod uvm;

pub use crate::sys::tracing::At;

/// A group of probes that is loaded at once, with maps of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Block requests and their workloads.
    Block,
    /// NVMe commands. The module may come later.
    Nvme,
    /// IOMMU, DMA, swiotlb, AER, io_uring.
    Host,
    /// The GPU driver's reports. The module may come later.
    Xid,
    /// UVM page faults and page migrations. The module may come later, and come again.
    Uvm,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 5] = [Group::Block, Group::Nvme, Group::Host, Group::Xid, Group::Uvm];

    /// Its share of the budget of map memory, in sixteenths; all of them together are the whole.
    pub(crate) fn sixteenths(self) -> u64 {
        match self {
            Group::Block => 8,
            Group::Nvme => 5,
            Group::Host | Group::Xid | Group::Uvm => 1,
        }
    }

    /// By how much a probe of it may cost more than `max_cpu_percent`. A UVM page fault takes the driver some tens of
    /// microseconds: a storm of them is what the probes are there for, and they take a few percent of that time.
    pub(crate) fn patience(self) -> f64 {
        if self == Group::Uvm { 10.0 } else { 1.0 }
    }
}

/// When a probe is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Cheap enough to leave on.
    Light,
    /// Everything.
    Full,
}

/// One way to get at the same knowledge; the first that works is taken.
#[derive(Debug, Clone, Copy)]
pub enum Hook {
    /// A BTF trace point. `needs`: without these members it is of no use.
    Btf {
        /// The program.
        program: &'static str,
        /// The trace point.
        event: &'static str,
        /// The structure that its first argument must point to.
        argument: &'static str,
        /// Indices into [`glake_common::member::MEMBERS`], in groups.
        needs: &'static [&'static [usize]],
    },
    /// A raw trace point of a module, whose arguments are addresses of kernel structures.
    Raw {
        /// The program.
        program: &'static str,
        /// The trace point.
        event: &'static str,
        /// The structure that its first argument must point to.
        argument: &'static str,
        /// Indices into [`glake_common::member::MEMBERS`], in groups.
        needs: &'static [&'static [usize]],
    },
    /// A classic trace point, read by its `format`.
    Classic {
        /// The program.
        program: &'static str,
        /// Category of the trace point.
        category: &'static str,
        /// The trace point.
        event: &'static str,
        /// The global that takes the offsets.
        global: &'static str,
        /// Fields by index. An optional one (`?` first) may be missing: its number is then not told.
        fields: &'static [&'static str],
    },
    /// A kernel function. `needs`: without these members it is of no use.
    Function {
        /// The program.
        program: &'static str,
        /// The function.
        function: &'static str,
        /// Indices into [`glake_common::member::MEMBERS`].
        needs: &'static [usize],
    },
    /// The return of a kernel function.
    Return {
        /// The program.
        program: &'static str,
        /// The function.
        function: &'static str,
    },
    /// The entry or the return of a module's function, called by the function itself (fentry, fexit). Needs the module's BTF.
    Direct {
        /// The program.
        program: &'static str,
        /// The function.
        function: &'static str,
        /// Which of the two.
        at: At,
    },
}

impl Hook {
    /// The program of this hook.
    pub fn program(&self) -> &'static str {
        match self {
            Hook::Btf { program, .. }
            | Hook::Raw { program, .. }
            | Hook::Classic { program, .. }
            | Hook::Function { program, .. }
            | Hook::Return { program, .. }
            | Hook::Direct { program, .. } => program,
        }
    }

    /// The kernel function whose entry or return it is.
    pub fn function(&self) -> Option<&'static str> {
        match self {
            Hook::Function { function, .. }
            | Hook::Return { function, .. }
            | Hook::Direct { function, .. } => Some(function),
            Hook::Btf { .. } | Hook::Raw { .. } | Hook::Classic { .. } => None,
        }
    }

    /// Whether it is a probe on a function, which needs neither tracefs nor types.
    pub fn probes_function(&self) -> bool {
        matches!(self, Hook::Function { .. } | Hook::Return { .. } | Hook::Direct { .. })
    }

    /// Whether the function itself calls the program.
    pub fn is_direct(&self) -> bool {
        matches!(self, Hook::Direct { .. })
    }

    /// The hook in the kernel's words.
    pub fn describe(&self) -> String {
        match self {
            Hook::Btf { event, .. } | Hook::Raw { event, .. } => {
                format!("{event} (raw trace point, BTF offsets)")
            }
            Hook::Classic { category, event, .. } => format!("{category}:{event} (trace point)"),
            Hook::Function { function, .. } => format!("{function} (kprobe)"),
            Hook::Return { function, .. } => format!("{function} (kretprobe)"),
            Hook::Direct { function, at: At::Entry, .. } => format!("{function} (fentry)"),
            Hook::Direct { function, at: At::Exit, .. } => format!("{function} (fexit)"),
        }
    }
}

/// A probe.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Stable name.
    pub name: &'static str,
    /// The family it serves.
    pub family: &'static str,
    /// What it is loaded with.
    pub group: Group,
    /// When it is wanted.
    pub profile: Profile,
    /// Not on means degraded.
    pub required: bool,
    /// A kernel module that brings its hook; without the module the probe is off, not failed.
    pub module: Option<&'static str>,
    /// What it fills in a sample.
    pub fills: &'static str,
    /// Ways, best first.
    pub hooks: &'static [Hook],
}

const fn entry(name: &'static str, family: &'static str, group: Group, hooks: &'static [Hook]) -> Entry {
    Entry { name, family, group, profile: Profile::Light, required: false, module: None, fills: "", hooks }
}

/// Every probe there is.
pub fn probes() -> impl Iterator<Item = &'static Entry> {
    block::PROBES.iter().chain(nvme::PROBES).chain(host::PROBES).chain(uvm::PROBES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_probe_has_a_way() {
        let names: HashSet<_> = probes().map(|e| e.name).collect();
        assert_eq!(names.len(), probes().count());
        assert!(probes().all(|e| !e.hooks.is_empty() && !e.fills.is_empty()));
    }

    #[test]
    fn hooks_that_share_a_global_agree_on_the_meaning_of_its_words() {
        for hook in probes().flat_map(|e| e.hooks) {
            if let Hook::Classic { global, fields, .. } = hook {
                assert!(fields.len() <= 8, "{global}");
                for other in probes().flat_map(|e| e.hooks) {
                    if let Hook::Classic { global: g, fields: f, .. } = other
                        && g == global
                    {
                        assert_eq!(f, fields, "{global}");
                    }
                }
            }
        }
    }
}
