//! A group of probes: its programs and maps in the kernel, and how each probe got there or why not.

use super::{
    sizes::Sizes,
    table::{self, Entry, Group, Hook},
    uvm::{Module, layout::Layout},
};
use crate::{
    error::{Error, Kind, Result},
    events::sample::ProbeState,
    sys::{bpf, btf::Btf, tracefs::Tracefs},
};
use aya::{
    Ebpf, EbpfLoader,
    programs::{
        BtfTracePoint, Iter, KProbe, ProgramError, RawTracePoint, TracePoint, kprobe::KProbeLink,
        raw_trace_point::RawTracePointLink, tp_btf::BtfTracePointLink, trace_point::TracePointLink,
    },
};
use glake_common::{NONE, member, param};
use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

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
}

impl Ways {
    fn allow(self, hook: &Hook) -> bool {
        match self {
            Ways::Any => true,
            Ways::Btf => matches!(hook, Hook::Btf { .. }),
            Ways::Classic => !matches!(hook, Hook::Btf { .. } | Hook::Raw { .. }),
        }
    }
}

/// Offsets of one classic trace point.
type Fields = [u32; 8];

/// What the kernel says of itself, as far as the probes need it.
pub(crate) struct Kernel {
    root: PathBuf,
    offsets: [u32; member::COUNT],
    /// Structures of the first arguments of the trace points in the table; empty without BTF.
    arguments: BTreeMap<&'static str, Vec<String>>,
    no_btf: Option<Error>,
    use_btf: bool,
    /// nvidia-uvm as it is loaded now, and its structures.
    uvm: Option<(Module, Layout)>,
}

impl Kernel {
    /// Reads the kernel's types. `use_btf` false acts as on a kernel without them.
    pub(crate) fn read(root: &Path, use_btf: bool) -> Kernel {
        let mut kernel = Kernel {
            root: root.to_owned(),
            offsets: [NONE; member::COUNT],
            arguments: BTreeMap::new(),
            no_btf: None,
            use_btf,
            uvm: None,
        };
        let btf = if use_btf {
            Btf::read(root).map(|btf| with_module(btf, root))
        } else {
            Err(Error::new(Kind::Unsupported, "BTF is switched off by the settings"))
        };
        match btf {
            Ok(btf) => {
                for (i, (structure, path)) in member::MEMBERS.iter().enumerate() {
                    kernel.offsets[i] = btf.member(structure, path).unwrap_or(NONE);
                }
                for hook in table::probes().flat_map(|e| e.hooks) {
                    if let Hook::Btf { event, .. } | Hook::Raw { event, .. } = hook
                        && let Some(arguments) = btf.tracepoint(event)
                    {
                        kernel.arguments.insert(event, arguments);
                    }
                }
            }
            Err(e) => kernel.no_btf = Some(e),
        }
        kernel
    }

    /// The same after a module has come.
    pub(crate) fn again(&self) -> Kernel {
        Kernel::read(&self.root, self.use_btf)
    }

    /// Whether the kernel's types tell where a member is.
    pub(crate) fn knows(&self, member: usize) -> bool {
        self.offsets[member] != NONE
    }

    /// Where the host's files are.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Looks at the nvidia-uvm that is loaded now.
    ///
    /// # Errors
    /// When there is none, or its structures are not known.
    pub(crate) fn look_at_uvm(&mut self) -> Result<Module> {
        self.uvm = None;
        let layout = Layout::read(&self.root)?;
        let gone = || Error::new(Kind::Missing, "the nvidia-uvm kernel module is not loaded");
        let module = Module::loaded(&self.root).ok_or_else(gone)?;
        self.uvm = Some((module, layout));
        Ok(module)
    }

    /// Its structures, once it was looked at.
    pub(crate) fn uvm_layout(&self) -> Option<&Layout> {
        self.uvm.as_ref().map(|(_, layout)| layout)
    }

    /// Its device number; one that no device has where it was not looked at.
    pub(crate) fn uvm_device(&self) -> u32 {
        self.uvm.as_ref().map_or(u32::MAX, |(module, _)| module.device)
    }

    fn has(&self, members: &[&[usize]]) -> std::result::Result<(), String> {
        match members.iter().copied().flatten().find(|m| self.offsets[**m] == NONE) {
            Some(m) => Err(format!("this kernel has no {}.{}", member::MEMBERS[*m].0, member::MEMBERS[*m].1)),
            None => Ok(()),
        }
    }

    /// Whether a hook can be tried, and with which offsets.
    fn check(&self, hook: &Hook) -> std::result::Result<Option<Fields>, Refusal> {
        match hook {
            Hook::Btf { event, argument, needs, .. } | Hook::Raw { event, argument, needs, .. } => {
                if let Some(e) = &self.no_btf {
                    return Err(Refusal::of(e));
                }
                let arguments = self
                    .arguments
                    .get(event)
                    .ok_or_else(|| Refusal::absent(format!("this kernel has no {event}")))?;
                if arguments.first().map(String::as_str) != Some(argument) {
                    return Err(Refusal::absent(format!(
                        "{event} has other arguments here: {}",
                        arguments.join(", ")
                    )));
                }
                self.has(needs).map(|()| None).map_err(Refusal::absent)
            }
            Hook::Classic { category, event, fields, .. } => {
                let tracefs = Tracefs::find(&self.root).map_err(|e| Refusal::of(&e))?;
                if !tracefs.has(category, event) {
                    return Err(Refusal::absent(format!("this kernel has no {category}:{event} now")));
                }
                if fields.is_empty() {
                    return Ok(None);
                }
                let known = tracefs.format(category, event).map_err(|e| Refusal::of(&e))?;
                pick(fields, &known, category, event).map(Some)
            }
            // Whether the function exists shows when it is tried: the list of symbols takes longer to read than that.
            Hook::Function { .. } | Hook::Return { .. } => {
                if self.root.join("sys/bus/event_source/devices/kprobe").exists() {
                    Ok(None)
                } else {
                    Err(Refusal::absent(
                        "this kernel was built without kprobes (CONFIG_KPROBE_EVENTS)".to_owned(),
                    ))
                }
            }
        }
    }
}

/// Adds the types of the one module that has raw trace points here. Where it is missing it is either built in, or its probes take
/// another way.
fn with_module(mut btf: Btf, root: &Path) -> Btf {
    let mut raw = table::probes().filter(|e| e.hooks.iter().any(|h| matches!(h, Hook::Raw { .. })));
    if let Some(module) = raw.find_map(|e| e.module) {
        let _ = btf.add_module(root, module);
    }
    btf
}

/// Whether a module is loaded, or built in with parameters of its own.
pub(crate) fn has_module(root: &Path, module: &str) -> bool {
    root.join("sys/module").join(module).exists()
}

fn pick(
    wanted: &[&str],
    known: &[crate::sys::tracefs::Field],
    category: &str,
    event: &str,
) -> std::result::Result<Fields, Refusal> {
    let mut out = [NONE; 8];
    for (slot, name) in out.iter_mut().zip(wanted) {
        let (name, optional) = name.strip_prefix('?').map_or((*name, false), |n| (n, true));
        match known.iter().find(|f| f.name == name) {
            Some(field) => *slot = field.offset,
            None if optional => {}
            None => return Err(Refusal::absent(format!("{category}:{event} has no field {name} here"))),
        }
    }
    Ok(out)
}

enum Link {
    Btf(#[allow(dead_code, reason = "held for its Drop")] BtfTracePointLink),
    Raw(#[allow(dead_code, reason = "held for its Drop")] RawTracePointLink),
    Classic(#[allow(dead_code, reason = "held for its Drop")] TracePointLink),
    Function(#[allow(dead_code, reason = "held for its Drop")] KProbeLink),
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

/// The programs and maps of one group.
pub(crate) struct Loaded {
    pub(crate) ebpf: Ebpf,
    pub(crate) sizes: Sizes,
    btf: Option<aya::Btf>,
    root: PathBuf,
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
            match remedy(&kernel.root, errno) {
                Some(remedy) => error.remedy(remedy),
                None => error,
            }
        })?;
        Ok(Loaded { ebpf, sizes, btf: None, root: kernel.root.clone() })
    }

    /// Frees what only attaching needs: aya's copy of the kernel's types takes tens of MiB.
    pub(crate) fn settle(&mut self) {
        self.btf = None;
    }

    /// Tries the ways of a probe in turn.
    pub(crate) fn attach(&mut self, kernel: &Kernel, placed: &mut Placed, ways: Ways) {
        let mut refusals: Vec<Refusal> = Vec::new();
        for hook in placed.entry.hooks.iter().filter(|h| ways.allow(h)) {
            let tried = kernel
                .check(hook)
                .and_then(|_| self.attach_hook(hook).map_err(|e| Refusal::program(&self.root, hook, &e)));
            match tried {
                Ok(link) => {
                    placed.how = hook.describe();
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
        }
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
