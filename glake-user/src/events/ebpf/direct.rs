//! Programs that the functions of a module call themselves (fentry, fexit). aya opens the object and its maps; it cannot
//! load these, so their instructions are taken out of the object a second time, bound to the same maps.

use crate::{
    error::{Error, Kind, Result},
    sys::tracing::{self, At, Program},
};
use aya::{Ebpf, maps::Map};
use aya_obj::{Object, ProgramSection, generated::bpf_insn};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::CString,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// The numbers of functions in the types of a module.
pub(crate) type Functions = BTreeMap<&'static str, u32>;

/// An attached program.
pub(crate) struct Attached {
    program: OwnedFd,
    #[allow(dead_code, reason = "held for its Drop")]
    link: OwnedFd,
}

impl Attached {
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// The maps of our object by name, as descriptors.
pub(crate) struct Maps(Vec<(String, i32)>);

impl Maps {
    /// They must stay open as long as this is used.
    pub(crate) fn of(ebpf: &Ebpf) -> Maps {
        Maps(ebpf.maps().filter_map(|(name, map)| Some((name.to_owned(), fd(map)?))).collect())
    }
}

/// The programs of an object, ready to be loaded for the functions of one module, whose types are named by descriptor.
pub(crate) struct Direct {
    programs: BTreeMap<String, Vec<bpf_insn>>,
    license: CString,
    types: Arc<OwnedFd>,
}

impl Direct {
    /// # Errors
    /// When the object has other maps.
    pub(crate) fn new(object: &[u8], maps: &Maps, types: Arc<OwnedFd>) -> Result<Direct> {
        let bad = |e: &dyn std::error::Error| {
            Error::new(Kind::Unsupported, format!("taking programs out of the eBPF object: {e}"))
        };
        let mut object = Object::parse(object).map_err(|e| bad(&e))?;
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let known = std::mem::take(&mut object.maps);
        let pairs = maps.0.iter().filter_map(|(name, fd)| Some((name.as_str(), *fd, known.get(name)?)));
        object.relocate_maps(pairs, &text).map_err(|e| bad(&e))?;
        object.relocate_calls(&text).map_err(|e| bad(&e))?;
        let direct = |p: &aya_obj::Program| {
            matches!(p.section, ProgramSection::FEntry { .. } | ProgramSection::FExit { .. })
        };
        let programs = object.programs.iter().filter(|(_, p)| direct(p)).filter_map(|(name, p)| {
            Some((name.clone(), object.functions.get(&p.function_key())?.instructions.clone()))
        });
        Ok(Direct { programs: programs.collect(), license: object.license.clone(), types })
    }

    /// Loads a program for the function with this number and attaches it.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(crate) fn attach(&self, name: &str, function: u32, at: At) -> Result<Attached> {
        let missing = || Error::new(Kind::Unsupported, format!("the eBPF object has no program {name}"));
        let instructions = self.programs.get(name).ok_or_else(missing)?;
        let program = Program { name, instructions, license: &self.license, at };
        let program = tracing::load(program, self.types.as_fd(), function)?;
        let link = tracing::attach(program.as_fd())
            .map_err(|e| Error::os(format!("attaching the program {name}"), e))?;
        Ok(Attached { program, link })
    }
}

/// The kinds of map that our object has.
fn fd(map: &Map) -> Option<i32> {
    match map {
        Map::Array(m)
        | Map::PerCpuArray(m)
        | Map::HashMap(m)
        | Map::LruHashMap(m)
        | Map::PerCpuHashMap(m)
        | Map::RingBuf(m)
        | Map::Queue(m) => Some(m.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}
