//! A group of probes: its programs and maps in the kernel, and how each probe got there or why not.

use super::{
    direct::{Attached, Direct, Maps},
    kernel::Fields,
    sizes::Sizes,
    table::{self, At, Entry, Group, Hook},
};
use crate::{
    error::{Error, Kind, Result},
    events::sample::ProbeState,
    sys::{bpf, tracefs::Tracefs},
};
use aya::{
    Ebpf, EbpfLoader,
    programs::{
        BtfTracePoint, Iter, KProbe, ProgramError, RawTracePoint, TracePoint, kprobe::KProbeLink,
        raw_trace_point::RawTracePointLink, tp_btf::BtfTracePointLink, trace_point::TracePointLink,
    },
};
use glake_common::param;
use std::{
    cell::OnceCell,
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

pub(crate) use super::kernel::{Kernel, has_module};
pub(crate) use super::refusal::Refusal;
use super::refusal::{chain, remedy};

/// The object that `cargo xtask` built, empty in a bare `cargo build`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/glake-ebpf.o"));

/// Whether this binary has the programs in it.
pub(crate) fn has_object() -> bool {
    !OBJECT.is_empty()
}

/// Which ways may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ways {
    /// Any that works.
    Any,
    /// BTF trace points only.
    Btf,
    /// All but BTF trace points.
    Classic,
    /// Any that works, and of those on functions fentry and fexit first.
    DirectFirst,
    /// All but fentry and fexit.
    NotDirect,
}

impl Ways {
    /// The ways to a probe that may be taken, best first.
    fn of(self, entry: &'static Entry) -> Vec<&'static Hook> {
        let mut hooks: Vec<&Hook> = entry.hooks.iter().filter(|h| self.allow(h)).collect();
        if self == Ways::DirectFirst {
            hooks.sort_by_key(|h| !h.is_direct());
        }
        hooks
    }

    fn allow(self, hook: &Hook) -> bool {
        match self {
            Ways::Any | Ways::DirectFirst => true,
            Ways::NotDirect => !hook.is_direct(),
            Ways::Btf => matches!(hook, Hook::Btf { .. }),
            Ways::Classic => !matches!(hook, Hook::Btf { .. } | Hook::Raw { .. }),
        }
    }
}

enum Link {
    Btf(#[allow(dead_code, reason = "held for its Drop")] BtfTracePointLink),
    Raw(#[allow(dead_code, reason = "held for its Drop")] RawTracePointLink),
    Classic(#[allow(dead_code, reason = "held for its Drop")] TracePointLink),
    Function(#[allow(dead_code, reason = "held for its Drop")] KProbeLink),
    Direct(Attached),
}

/// Where a probe is.
pub(crate) struct Placed {
    pub(crate) entry: &'static Entry,
    pub(crate) how: String,
    pub(crate) state: ProbeState,
    pub(crate) why: Option<Refusal>,
    program: Option<&'static str>,
    link: Option<Link>,
}

impl Placed {
    pub(crate) fn new(entry: &'static Entry) -> Placed {
        let how = entry.hooks.first().map(Hook::describe).unwrap_or_default();
        Placed { entry, how, state: ProbeState::Off, why: None, program: None, link: None }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.state == ProbeState::On
    }

    /// Whether its function calls it, which keeps the function's module from being unloaded.
    pub(crate) fn holds_module(&self) -> bool {
        matches!(self.link, Some(Link::Direct(_)))
    }

    /// Off until its module comes. Where only tracefs tells whether it is there, and that is missing, this is the reason.
    pub(crate) fn await_module(&mut self, root: &Path) {
        let first = self.entry.hooks.first();
        let hook = first.map(Hook::describe).unwrap_or_default();
        let module = self.entry.module.unwrap_or_default();
        let needs_tracefs = match first {
            Some(Hook::Raw { .. }) => has_module(root, module),
            _ => !first.is_some_and(Hook::probes_function),
        };
        let (state, mut why) = match Tracefs::find(root) {
            Err(e) if needs_tracefs => (ProbeState::Failed, Refusal::of(&e)),
            _ => {
                let reason = format!("no {hook} now: module {module} is not loaded, or lacks it");
                (ProbeState::Off, Refusal::absent(reason))
            }
        };
        why.module_missing = true;
        self.off(state, why);
    }

    pub(crate) fn off(&mut self, state: ProbeState, why: Refusal) {
        self.link = None;
        self.state = state;
        self.why = Some(why);
    }
}

/// The types of a loaded module as a descriptor, or why there is none.
pub(crate) type ModuleTypes = std::result::Result<Arc<OwnedFd>, Refusal>;

/// The programs and maps of one group.
pub(crate) struct Loaded {
    pub(crate) ebpf: Ebpf,
    pub(crate) sizes: Sizes,
    btf: Option<aya::Btf>,
    root: PathBuf,
    maps: Maps,
    /// The types of nvidia-uvm, or why they are not known.
    types: ModuleTypes,
    /// Programs for fentry and fexit, once one was wanted.
    direct: OnceCell<std::result::Result<Direct, Refusal>>,
}

impl Loaded {
    /// Loads the maps and prepares the programs of a group; attaches nothing.
    pub(crate) fn new(
        kernel: &Kernel,
        group: Group,
        sizes: Sizes,
        settings: [u32; param::COUNT],
    ) -> Result<Loaded> {
        if !has_object() {
            return Err(Error::new(Kind::Unsupported, "this binary was built without the eBPF programs")
                .remedy("build it with: cargo xtask run"));
        }
        let mut fields: BTreeMap<&'static str, Fields> = BTreeMap::new();
        for hook in table::probes().filter(|e| e.group == group).flat_map(|e| e.hooks) {
            if let Hook::Classic { global, .. } = hook
                && let Ok(Some(offsets)) = kernel.check(hook)
            {
                fields.entry(global).or_insert(offsets);
            }
        }
        let mut loader = EbpfLoader::new();
        loader
            .btf(None)
            .override_global("OFFSETS", &kernel.offsets, true)
            .override_global("PARAMS", &settings, true);
        for (global, offsets) in &fields {
            loader.override_global(global, offsets, true);
        }
        if let (Group::Uvm, Some(layout)) = (group, kernel.uvm_layout()) {
            loader.override_global(glake_common::uvm::layout::GLOBAL, &layout.words, true);
        }
        for (map, entries, _) in sizes.entries() {
            loader.map_max_entries(map, entries);
        }
        loader.map_max_entries("EVENTS", sizes.ring);
        let ebpf = loader.load(OBJECT).map_err(|e| {
            let errno = errno_of(&e);
            let error = Error::new(Kind::Denied, format!("loading the {group:?} probes: {}", chain(&e)));
            match remedy(kernel.root(), errno) {
                Some(remedy) => error.remedy(remedy),
                None => error,
            }
        })?;
        let maps = Maps::of(&ebpf);
        let types = Err(Refusal::absent("it was not looked for".to_owned()));
        let direct = OnceCell::new();
        Ok(Loaded { ebpf, sizes, btf: None, root: kernel.root().to_owned(), maps, types, direct })
    }

    /// For fentry and fexit on nvidia-uvm.
    pub(crate) fn set_types(&mut self, types: ModuleTypes) {
        self.types = types;
    }

    /// Frees what only attaching needs: aya's copy of the kernel's types takes tens of MiB.
    pub(crate) fn settle(&mut self) {
        self.btf = None;
    }

    /// Tries the ways of a probe in turn.
    pub(crate) fn attach(&mut self, kernel: &Kernel, placed: &mut Placed, ways: Ways) {
        let mut refusals: Vec<Refusal> = Vec::new();
        let hooks = ways.of(placed.entry);
        for hook in &hooks {
            let tried = kernel.check(hook).and_then(|_| match hook {
                Hook::Direct { program, function, at } => self.attach_direct(kernel, program, function, *at),
                _ => self.attach_hook(hook).map_err(|e| Refusal::program(&self.root, hook, &e)),
            });
            match tried {
                Ok(link) => {
                    placed.how = hook.describe();
                    // The better way was tried: why not that one.
                    if let (Some(first), true) = (hooks.first(), placed.entry.group == Group::Uvm)
                        && first.is_direct() != hook.is_direct()
                        && let Some(why) = refusals.iter().find(|r| !r.absent).or(refusals.first())
                    {
                        let better = if first.is_direct() { "fentry" } else { "kprobe" };
                        placed.how.push_str(&format!(", not {better}: {}", why.reason));
                    }
                    placed.program = Some(hook.program());
                    placed.link = Some(link);
                    placed.state = ProbeState::On;
                    placed.why = None;
                    return;
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        let absent = refusals.iter().all(|r| r.absent);
        // The most telling refusal is one that is not mere absence.
        let why = refusals
            .iter()
            .find(|r| !r.absent)
            .or(refusals.first())
            .cloned()
            .unwrap_or_else(|| Refusal::absent("there is no way to it on this kernel".to_owned()));
        // A module that is there and whose functions cannot be probed has nothing to wait for.
        let function = placed.entry.hooks.first().is_some_and(Hook::probes_function);
        if absent && placed.entry.module.is_some_and(|m| !(function && has_module(&self.root, m))) {
            placed.await_module(&self.root);
            return;
        }
        let state = if absent && !placed.entry.required { ProbeState::Off } else { ProbeState::Failed };
        placed.off(state, why);
    }

    fn attach_hook(&mut self, hook: &Hook) -> std::result::Result<Link, ProgramError> {
        let missing = || ProgramError::InvalidName { name: hook.program().to_owned() };
        let program = self.ebpf.program_mut(hook.program()).ok_or_else(missing)?;
        let loaded = program.fd().is_ok();
        match hook {
            Hook::Btf { event, .. } => {
                let program: &mut BtfTracePoint = program.try_into()?;
                if !loaded {
                    if self.btf.is_none() {
                        self.btf = Some(aya::Btf::from_sys_fs()?);
                    }
                    program.load(event, self.btf.as_ref().ok_or(ProgramError::NotLoaded)?)?;
                }
                let id = program.attach()?;
                Ok(Link::Btf(program.take_link(id)?))
            }
            Hook::Raw { event, .. } => {
                let program: &mut RawTracePoint = program.try_into()?;
                if !loaded {
                    program.load()?;
                }
                let id = program.attach(event)?;
                Ok(Link::Raw(program.take_link(id)?))
            }
            Hook::Classic { category, event, .. } => {
                let program: &mut TracePoint = program.try_into()?;
                if !loaded {
                    program.load()?;
                }
                let id = program.attach(category, event)?;
                Ok(Link::Classic(program.take_link(id)?))
            }
            Hook::Function { function, .. } | Hook::Return { function, .. } => {
                let program: &mut KProbe = program.try_into()?;
                if !loaded {
                    program.load()?;
                }
                let id = program.attach(*function, 0)?;
                Ok(Link::Function(program.take_link(id)?))
            }
            Hook::Direct { .. } => Err(ProgramError::NotLoaded),
        }
    }

    fn attach_direct(
        &self,
        kernel: &Kernel,
        program: &str,
        function: &str,
        at: At,
    ) -> std::result::Result<Link, Refusal> {
        let types = self.types.clone()?;
        let direct = self.direct.get_or_init(|| {
            Direct::new(OBJECT, &self.maps, types).map_err(|e| Refusal::direct(&self.root, &e))
        });
        let direct = direct.as_ref().map_err(Clone::clone)?;
        let attached = direct.attach(program, kernel.number_of(function)?, at);
        attached.map(Link::Direct).map_err(|e| Refusal::direct(&self.root, &e))
    }

    /// Runs the iterator `uvm_files` once, over the open files of all tasks.
    ///
    /// # Errors
    /// When the kernel refuses: it needs BTF and Linux 5.8.
    pub(crate) fn visit_open_files(&mut self) -> Result<()> {
        let failed = |why: String| Error::new(Kind::Denied, format!("looking through the open files: {why}"));
        let program = self.ebpf.program_mut("uvm_files").ok_or_else(|| failed("no such program".into()))?;
        let program: &mut Iter = program.try_into().map_err(|e: ProgramError| failed(chain(&e)))?;
        if program.fd().is_err() {
            let btf = aya::Btf::from_sys_fs().map_err(|e| failed(chain(&e)))?;
            program.load("task_file", &btf).map_err(|e| failed(chain(&e)))?;
        }
        let id = program.attach().map_err(|e| failed(chain(&e)))?;
        let link = program.take_link(id).map_err(|e| failed(chain(&e)))?;
        let mut file = link.into_file().map_err(|e| failed(chain(&e)))?;
        // It prints nothing; reading to the end makes it run.
        std::io::copy(&mut file, &mut std::io::sink())
            .map(|_| ())
            .map_err(|e| Error::os("looking through the open files", e))
    }

    /// What the program of a probe has done. `None`: it is not loaded.
    pub(crate) fn cost(&self, placed: &Placed) -> Option<bpf::ProgramCost> {
        if let Some(Link::Direct(attached)) = &placed.link {
            return bpf::program_cost(attached.program()).ok();
        }
        let program = self.ebpf.program(placed.program?)?;
        bpf::program_cost(program.fd().ok()?.as_fd()).ok()
    }

    /// Maps the words of an array.
    pub(crate) fn words(&self, map: &'static str, words: u64) -> Result<bpf::Words> {
        let name = || Error::new(Kind::Unsupported, format!("the eBPF object has no array map {map}"));
        let aya::maps::Map::Array(data) = self.ebpf.map(map).ok_or_else(name)? else { return Err(name()) };
        bpf::Words::map(data.fd().as_fd(), usize::try_from(words).map_err(|_| name())?)
    }
}

fn errno_of(e: &aya::EbpfError) -> Option<i32> {
    let mut next: Option<&dyn std::error::Error> = Some(e);
    while let Some(e) = next {
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        next = e.source();
    }
    None
}
