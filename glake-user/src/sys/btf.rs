//! Offsets of kernel structure members, from the kernel's own type information (BTF).
//!
//! Only what the probes need: where a member is, and what a trace point's arguments are. Parsing is total: bytes from
//! outside give a value or an error, never a panic. Layout: Documentation/bpf/btf.rst.

use crate::error::{Error, Kind, Result};
use std::path::Path;

const MAGIC: u16 = 0xEB9F;

/// Kinds that are looked at; numbers of include/uapi/linux/btf.h.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// How deep anonymous members and chains of modifiers may nest.
const DEPTH: u32 = 32;

/// The types of one kernel.
pub struct Btf {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// Where each type starts in `types`; type 0 is void and has none.
    starts: Vec<u32>,
}

/// Where a member is.
#[derive(Clone, Copy)]
struct Place {
    /// From the start of the structure.
    bit: u32,
    /// Bits of a bit field; 0: it is none.
    width: u32,
    its_type: u32,
}

/// One type, taken apart.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Entries that follow.
    entries: u32,
    /// Members carry bit-field sizes.
    bitfields: bool,
    /// Size in bytes, or the type that it refers to.
    size_or_type: u32,
    /// Where its entries start in `types`.
    body: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let b = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

impl Btf {
    /// Reads `sys/kernel/btf/vmlinux` below `root`. Needs no privilege.
    ///
    /// # Errors
    /// `Missing` where the kernel was built without CONFIG_DEBUG_INFO_BTF; `BadInput` where it is malformed.
    pub fn read(root: &Path) -> Result<Btf> {
        let path = root.join("sys/kernel/btf/vmlinux");
        let bytes = std::fs::read(&path).map_err(|e| {
            Error::os(format!("reading {}", path.display()), e).remedy(
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y; without it the classic trace points are used",
            )
        })?;
        Btf::parse(&bytes)
    }

    /// Parses the bytes of `/sys/kernel/btf/vmlinux`, in this machine's byte order.
    ///
    /// # Errors
    /// `BadInput` when the header, a type or the string section does not fit into the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Btf> {
        let bad =
            |what: &str| Error::new(Kind::BadInput, format!("parsing BTF ({} bytes): {what}", bytes.len()));
        let header = |at| word(bytes, at).map(|w| w as usize).ok_or_else(|| bad("the header is cut short"));
        let first = header(0)?;
        if first as u16 != MAGIC {
            return Err(bad("the magic number is wrong"));
        }
        let base = header(4)?;
        let section = |offset: usize, length: usize| {
            let from = base.checked_add(offset)?;
            bytes.get(from..from.checked_add(length)?).map(<[u8]>::to_vec)
        };
        let types = section(header(8)?, header(12)?).ok_or_else(|| bad("the types are cut short"))?;
        let strings = section(header(16)?, header(20)?).ok_or_else(|| bad("the strings are cut short"))?;
        let starts = index(&types).map_err(|at| bad(&format!("the type at byte {at} is malformed")))?;
        Ok(Btf { types, strings, starts })
    }

    /// Adds the types of a module, `sys/kernel/btf/MODULE` below `root`. Needs no privilege.
    ///
    /// # Errors
    /// `Missing` where the module is not loaded or was built without BTF; `BadInput` where it is malformed or belongs to another kernel.
    pub fn add_module(&mut self, root: &Path, module: &str) -> Result<()> {
        let path = root.join("sys/kernel/btf").join(module);
        let bytes = std::fs::read(&path).map_err(|e| Error::os(format!("reading {}", path.display()), e))?;
        self.extend(&bytes)
            .map_err(|e| Error::new(e.kind(), format!("reading {}", path.display())).because(e))
    }

    /// Adds the bytes of a module's file, whose types and strings are numbered on from those of the kernel.
    ///
    /// # Errors
    /// As [`Btf::parse`]; the types that were there stay.
    pub fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        let module = Btf::parse(bytes)?;
        let too_long = || Error::new(Kind::BadInput, "parsing BTF: more than 4 GiB of types");
        let base = u32::try_from(self.types.len()).map_err(|_| too_long())?;
        let starts: Option<Vec<u32>> = module.starts.iter().map(|s| s.checked_add(base)).collect();
        self.starts.extend(starts.ok_or_else(too_long)?);
        self.types.extend(module.types);
        self.strings.extend(module.strings);
        Ok(())
    }

    fn get(&self, id: u32) -> Option<Type> {
        let start = *self.starts.get((id as usize).checked_sub(1)?)?;
        read_type(&self.types, start as usize)
    }

    fn text(&self, offset: u32) -> Option<&str> {
        let rest = self.strings.get(offset as usize..)?;
        let end = rest.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    fn find(&self, kinds: &[u32], name: &str) -> Option<Type> {
        self.starts
            .iter()
            .filter_map(|start| read_type(&self.types, *start as usize))
            .find(|t| kinds.contains(&t.kind) && t.entries_matter() && self.text(t.name) == Some(name))
    }

    /// Follows typedefs and qualifiers to the type itself.
    fn strip(&self, mut id: u32) -> Option<Type> {
        for _ in 0..DEPTH {
            let t = self.get(id)?;
            match t.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = t.size_or_type
                }
                _ => return Some(t),
            }
        }
        None
    }

    /// Byte offset of a member, which may lie in nested structures: `member("bio", "bi_iter.bi_size")`.
    /// Anonymous structures and unions are looked through. An empty path is the end of the structure: its size. `None`: no such
    /// member, or it is a bit field.
    pub fn member(&self, structure: &str, path: &str) -> Option<u32> {
        if path.is_empty() {
            return self.structure(structure).map(|t| t.size_or_type);
        }
        let place = self.place(structure, path)?;
        (place.width == 0 && place.bit % 8 == 0).then_some(place.bit / 8)
    }

    /// Bit offset of a member, a bit field included, as [`Btf::member`] finds it.
    pub fn bit(&self, structure: &str, path: &str) -> Option<u32> {
        self.place(structure, path).map(|place| place.bit)
    }

    /// A structure by its own name or by that of a typedef.
    fn structure(&self, name: &str) -> Option<Type> {
        self.find(&[kind::STRUCT, kind::UNION], name).or_else(|| {
            let typedef = self.find(&[kind::TYPEDEF], name)?;
            let t = self.strip(typedef.size_or_type)?;
            matches!(t.kind, kind::STRUCT | kind::UNION).then_some(t)
        })
    }

    fn place(&self, structure: &str, path: &str) -> Option<Place> {
        let mut here = self.structure(structure)?;
        let mut found = Place { bit: 0, width: 0, its_type: 0 };
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            let next = self.member_of(here, part, 0)?;
            found = Place { bit: found.bit.checked_add(next.bit)?, ..next };
            if parts.peek().is_some() {
                here = self.strip(next.its_type)?;
            }
        }
        Some(found)
    }

    fn member_of(&self, structure: Type, name: &str, depth: u32) -> Option<Place> {
        if depth > DEPTH || !matches!(structure.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        for i in 0..structure.entries as usize {
            let at = structure.body + i * 12;
            let (its_name, its_type, bits) =
                (word(&self.types, at)?, word(&self.types, at + 4)?, word(&self.types, at + 8)?);
            let (width, bits) = if structure.bitfields { (bits >> 24, bits & 0xff_ffff) } else { (0, bits) };
            match self.text(its_name)? {
                "" => {
                    if let Some(inner) = self.strip(its_type)
                        && let Some(found) = self.member_of(inner, name, depth + 1)
                    {
                        return Some(Place { bit: bits.checked_add(found.bit)?, ..found });
                    }
                }
                found if found == name => return Some(Place { bit: bits, width, its_type }),
                _ => {}
            }
        }
        None
    }

    /// The structures that a trace point's arguments point to, in order; an empty name for any other argument.
    /// `None`: neither the kernel nor a module that was added has such a trace point.
    pub fn tracepoint(&self, name: &str) -> Option<Vec<String>> {
        // include/trace/bpf_probe.h declares `typedef void (*btf_trace_NAME)(void *__data, ARGUMENTS)`.
        let typedef = self.find(&[kind::TYPEDEF], &format!("btf_trace_{name}"))?;
        let pointer = self.strip(typedef.size_or_type)?;
        let proto = self.get(pointer.size_or_type).filter(|t| t.kind == kind::FUNC_PROTO)?;
        let argument = |i: usize| {
            let id = word(&self.types, proto.body + i * 8 + 4)?;
            let pointer = self.strip(id).filter(|t| t.kind == kind::PTR)?;
            let target = self.strip(pointer.size_or_type)?;
            self.text(target.name).map(str::to_owned)
        };
        Some((1..proto.entries as usize).map(|i| argument(i).unwrap_or_default()).collect())
    }

    /// The number of a function. `None`: there is none of this name, or several (static ones of different files).
    pub fn function(&self, name: &str) -> Option<u32> {
        let of_name = |start: &u32| {
            let t = read_type(&self.types, *start as usize);
            t.is_some_and(|t| t.kind == kind::FUNC && self.text(t.name) == Some(name))
        };
        let mut found = (1..).zip(&self.starts).filter(|(_, start)| of_name(start)).map(|(id, _)| id);
        found.next().filter(|_| found.next().is_none())
    }

    /// How many types there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
}

impl Type {
    /// A structure without members may be a stand-in for one defined elsewhere.
    fn entries_matter(&self) -> bool {
        !matches!(self.kind, kind::STRUCT | kind::UNION) || self.entries > 0
    }
}

fn read_type(types: &[u8], at: usize) -> Option<Type> {
    let info = word(types, at + 4)?;
    Some(Type {
        name: word(types, at)?,
        kind: info >> 24 & 0x1f,
        entries: info & 0xffff,
        bitfields: info >> 31 == 1,
        size_or_type: word(types, at + 8)?,
        body: at + 12,
    })
}

/// Where each type starts; the byte of the first malformed one otherwise.
fn index(types: &[u8]) -> std::result::Result<Vec<u32>, usize> {
    let mut starts = Vec::new();
    let mut at = 0usize;
    while at < types.len() {
        let t = read_type(types, at).ok_or(at)?;
        let entries = t.entries as usize;
        let body = match t.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * entries,
            kind::ENUM | kind::FUNC_PROTO => 8 * entries,
            kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => 0,
            kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
            // Its length is unknown, and so is where the next one starts.
            _ => return Err(at),
        };
        starts.push(u32::try_from(at).map_err(|_| at)?);
        at = t.body + body;
        if at > types.len() {
            return Err(t.body);
        }
    }
    Ok(starts)
}

#[cfg(test)]
mod tests;
