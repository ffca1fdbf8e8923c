//! What the kernel says of itself, as far as the probes need it: where members of its structures are, what its trace
//! points are called with, and which nvidia-uvm is loaded.

use super::{
    attach::Refusal,
    table::{self, Hook},
    uvm::{Module, layout::Layout},
};
use crate::{
    error::{Error, Kind, Result},
    sys::{btf::Btf, tracefs::Tracefs},
};
use glake_common::{NONE, member};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Offsets of one classic trace point.
pub(super) type Fields = [u32; 8];

/// What the kernel says of itself, as far as the probes need it.
pub(crate) struct Kernel {
    root: PathBuf,
    pub(super) offsets: [u32; member::COUNT],
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

    /// The same after a module other than nvidia-uvm has come.
    pub(crate) fn read_again(&mut self) {
        let uvm = self.uvm.take();
        *self = Kernel { uvm, ..Kernel::read(&self.root, self.use_btf) };
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
    pub(super) fn check(&self, hook: &Hook) -> std::result::Result<Option<Fields>, Refusal> {
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
            Hook::Function { needs, .. } => {
                self.has_kprobes()?;
                if let (Some(e), false) = (&self.no_btf, needs.is_empty()) {
                    return Err(Refusal::of(e));
                }
                self.has(&[needs]).map(|()| None).map_err(Refusal::absent)
            }
            Hook::Return { .. } => self.has_kprobes().map(|()| None),
            Hook::Direct { function, .. } => self.number_of(function).map(|_| None),
        }
    }

    fn has_kprobes(&self) -> std::result::Result<(), Refusal> {
        if self.root.join("sys/bus/event_source/devices/kprobe").exists() {
            return Ok(());
        }
        let why = "this kernel was built without kprobes (CONFIG_KPROBE_EVENTS)";
        Err(Refusal::absent(why.to_owned()))
    }

    /// The number of a function in the types of nvidia-uvm.
    pub(super) fn number_of(&self, function: &str) -> std::result::Result<u32, Refusal> {
        let layout = self.uvm_layout();
        let functions = layout.and_then(|l| l.functions.as_ref()).ok_or_else(|| {
            Refusal::absent("nvidia_uvm was built without type information (BTF)".to_owned())
        })?;
        let missing = || Refusal::absent(format!("the BTF of nvidia_uvm has no {function}, or several"));
        functions.get(function).copied().ok_or_else(missing)
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
