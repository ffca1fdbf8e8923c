//! Programs at the entry and the return of a module's functions (fentry, fexit). aya loads them for functions of the
//! kernel itself only: it has no way to name a module's type information (BTF).

use crate::error::{Error, Kind, Result};
use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_btf_info, bpf_cmd, bpf_insn, bpf_prog_type};
use std::{
    ffi::CStr,
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Before the function's first instruction.
    Entry,
    /// After its last.
    Exit,
}

/// A program whose maps and calls are relocated.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// Shown by bpftool, cut to 15 bytes.
    pub name: &'a str,
    /// Its instructions.
    pub instructions: &'a [bpf_insn],
    /// Of the object that it comes from.
    pub license: &'a CStr,
    /// Where it runs.
    pub at: At,
}

/// Longest complaint of the verifier that is fetched.
const LOG: usize = 64 << 10;
/// More types than any machine has modules; ends the walk should the kernel never say that it is over.
const OBJECTS: u32 = 1 << 16;

/// bpf(2) with `attr`, for commands that give a number.
fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes `attr` within the given size, and only memory that it names; callers see to it that
    // this outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, cmd, std::ptr::from_mut(attr), size_of::<bpf_attr>()) };
    // Descriptors and 0 fit.
    i32::try_from(rc).ok().filter(|rc| *rc >= 0).ok_or_else(io::Error::last_os_error)
}

/// As [`bpf`], for commands that give a new descriptor.
fn bpf_fd(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let fd = bpf(cmd, attr)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn empty() -> bpf_attr {
    // SAFETY: a C union of integers, for which all bytes 0 is a value.
    unsafe { zeroed() }
}

/// The type information of a loaded module, as a descriptor.
///
/// # Errors
/// `Missing` where the module has none; `Denied` without CAP_SYS_ADMIN, which looking it up takes.
pub fn module_btf(module: &str) -> Result<OwnedFd> {
    let doing = || format!("looking up the type information of module {module}");
    let mut id = 0;
    for _ in 0..OBJECTS {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        match bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => break,
            Err(e) => return Err(Error::os(doing(), e)),
        }
        // SAFETY: the command has written this member.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        let fd = match bpf_fd(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) {
            Ok(fd) => fd,
            // Gone since.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(e) => return Err(Error::os(doing(), e)),
        };
        if is_of_module(&fd, module).map_err(|e| Error::os(doing(), e))? {
            return Ok(fd);
        }
    }
    Err(Error::new(Kind::Missing, format!("module {module} was built without type information (BTF)")))
}

fn is_of_module(fd: &OwnedFd, module: &str) -> io::Result<bool> {
    let mut name = [0u8; 64];
    // SAFETY: a plain C structure of integers (and pointers as integers), for which all bytes 0 is a value.
    let mut info: bpf_btf_info = unsafe { zeroed() };
    info.name = name.as_mut_ptr() as u64;
    info.name_len = name.len() as u32;
    let mut attr = empty();
    attr.info.bpf_fd = fd.as_raw_fd().cast_unsigned();
    attr.info.info = (&raw mut info) as u64;
    attr.info.info_len = size_of::<bpf_btf_info>() as u32;
    match bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) {
        Ok(_) => Ok(info.kernel_btf != 0
            && CStr::from_bytes_until_nul(&name).is_ok_and(|n| n.to_bytes() == module.as_bytes())),
        // A program's own, with a longer name than a module can have.
        Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Loads a program for the function with number `function` of the types `btf`. Since Linux 6.4 a loaded one keeps the module from
/// being unloaded, before that an attached one.
///
/// # Errors
/// What the kernel answers, with the verifier's last words.
pub fn load(program: Program<'_>, btf: BorrowedFd<'_>, function: u32) -> Result<OwnedFd> {
    let first = match try_load(program, btf, function, &mut []) {
        Ok(fd) => return Ok(fd),
        Err(e) => e,
    };
    // Writing a log is slow: only for a program that is refused.
    let mut log = vec![0u8; LOG];
    match try_load(program, btf, function, &mut log) {
        Ok(fd) => Ok(fd),
        Err(_) => {
            let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
            let words: Vec<&str> =
                text.lines().rev().filter(|l| !l.starts_with("processed ")).take(2).collect();
            let said = words.into_iter().rev().collect::<Vec<_>>().join("; ");
            let colon = if said.is_empty() { "" } else { ": " };
            Err(Error::os(format!("loading the program {}{colon}{said}", program.name), first))
        }
    }
}

fn try_load(program: Program<'_>, btf: BorrowedFd<'_>, function: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all bytes 0 is a value of every member of the union, so this one is initialised.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
    load.expected_attach_type = match program.at {
        At::Entry => bpf_attach_type::BPF_TRACE_FENTRY,
        At::Exit => bpf_attach_type::BPF_TRACE_FEXIT,
    } as u32;
    load.insns = program.instructions.as_ptr() as u64;
    load.insn_cnt = u32::try_from(program.instructions.len()).unwrap_or(u32::MAX);
    load.license = program.license.as_ptr() as u64;
    load.attach_btf_id = function;
    load.__bindgen_anon_1.attach_btf_obj_fd = btf.as_raw_fd().cast_unsigned();
    // The last byte stays 0.
    for (to, from) in load.prog_name.iter_mut().zip(program.name.bytes().take(15)) {
        *to = from.cast_signed();
    }
    if !log.is_empty() {
        load.log_level = 1;
        load.log_buf = log.as_mut_ptr() as u64;
        load.log_size = log.len() as u32;
    }
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// Attaches a program that [`load`] gave, until the result is dropped.
///
/// # Errors
/// What the kernel answers.
pub fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = empty();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}
