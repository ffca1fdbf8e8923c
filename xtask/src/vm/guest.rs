//! What the guest finds in its root: busybox, our programs with the libraries they ask for, modules, one script.

use super::cpio::Archive;
use super::kernel::Kernel;
use super::modules::{self, Modules};
use crate::{
    files,
    setup::{apt::Apt, lock},
};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first process of the guest.
const INIT: &str = include_str!("../../../tests/lab/init.sh");

/// Shell functions for jobs.
const LIB: &str = include_str!("../../../tests/lab/lib.sh");

/// Modules that every guest gets: the SSDs, a file system for them, a disk in memory with settable delay, and VFIO.
/// `?` marks those that only some kernels have as modules.
const MODULES: &[&str] = &[
    "nvme",
    "ext4",
    "?crc32c_generic",
    "?crc32c_intel",
    "null_blk",
    "vfio_pci",
    "vfio_iommu_type1",
    "?mq_deadline",
    "?bfq",
];

/// A file for the guest.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// On this machine.
    pub(crate) from: PathBuf,
    /// In the guest: a path, without the leading slash.
    pub(crate) to: String,
}

impl std::str::FromStr for File {
    type Err = anyhow::Error;

    /// `HOST` (goes to /files/NAME) or `HOST:GUEST`.
    fn from_str(text: &str) -> Result<File> {
        let (from, to) = match text.rsplit_once(':') {
            Some((from, to)) => (PathBuf::from(from), to.trim_start_matches('/').to_owned()),
            None => {
                let from = PathBuf::from(text);
                let name = from.file_name().with_context(|| format!("{text} names no file"))?;
                let to = format!("files/{}", name.to_string_lossy());
                (from, to)
            }
        };
        ensure!(from.is_file(), "{} is not a file", from.display());
        Ok(File { from, to })
    }
}

/// What goes into one initramfs.
pub(super) struct Contents<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) files: &'a [File],
    /// More modules, by name.
    pub(super) modules: &'a [String],
    /// A shell script: the guest's job.
    pub(super) script: &'a str,
    /// NVMe controllers to wait for.
    pub(super) nvmes: usize,
}

/// Builds the initramfs at `to`.
pub(super) fn build(cache: &Path, contents: &Contents, to: &Path) -> Result<()> {
    let busybox = busybox(cache)?;
    let mut archive = Archive::default();
    archive.file("bin/busybox", fs::read(&busybox)?);
    archive.file("init", INIT.as_bytes().to_vec());
    archive.file("lab/job", contents.script.as_bytes().to_vec());
    archive.file("lab/env", format!("NVMES={}\n", contents.nvmes).into_bytes());
    archive.file("lab/lib.sh", LIB.as_bytes().to_vec());
    for folder in ["dev", "proc", "sys", "tmp", "run", "mnt", "out", "root", "sbin", "etc"] {
        archive.folder(folder);
    }
    archive.file(
        "etc/passwd",
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n".to_vec(),
    );
    archive.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n".to_vec());
    let names: Vec<&str> =
        MODULES.iter().copied().chain(contents.modules.iter().map(String::as_str)).collect();
    add_modules(&mut archive, contents.kernel, modules::resolve(contents.kernel, &busybox, &names)?);
    for file in contents.files {
        add_program(&mut archive, file)?;
    }
    fs::write(to, archive.bytes()).with_context(|| format!("writing {}", to.display()))
}

/// Puts modules where busybox's modprobe looks, with the dependency list that it reads.
fn add_modules(archive: &mut Archive, kernel: &Kernel, modules: Modules) {
    let folder = format!("lib/modules/{}", kernel.release);
    let (mut index, mut aliases) = (String::new(), String::new());
    for module in modules.list {
        let needs: String = module.needs.iter().rev().map(|n| format!(" {n}.ko")).collect();
        let _ = writeln!(index, "{}.ko:{needs}", module.name);
        for alias in module.aliases() {
            let _ = writeln!(aliases, "alias {alias} {}", module.name);
        }
        archive.file(&format!("{folder}/{}.ko", module.name), module.bytes);
    }
    archive.file(&format!("{folder}/modules.dep"), index.into_bytes());
    archive.file(&format!("{folder}/modules.alias"), aliases.into_bytes());
}

/// Adds a file; a program that is linked dynamically brings its loader and libraries.
fn add_program(archive: &mut Archive, file: &File) -> Result<()> {
    let bytes = fs::read(&file.from).with_context(|| format!("reading {}", file.from.display()))?;
    let elf = bytes.starts_with(b"\x7fELF");
    archive.file(&file.to, if elf { stripped(&file.from, bytes)? } else { bytes });
    for library in if elf { libraries(&file.from)? } else { BTreeSet::new() } {
        if !archive.has(&library) {
            let bytes = fs::read(&library).with_context(|| format!("reading {library}"))?;
            archive.file(&library, bytes);
        }
    }
    Ok(())
}

/// A program of 100 MB with debug information would fill the guest's memory: the copy for the guest goes without.
fn stripped(from: &Path, bytes: Vec<u8>) -> Result<Vec<u8>> {
    const LARGE: usize = 4 << 20;
    if bytes.len() < LARGE || from.extension().is_some_and(|e| e == "ko") {
        return Ok(bytes);
    }
    let to = std::env::temp_dir().join(format!("glake-lab-strip.{}", std::process::id()));
    let done = Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(from).status();
    if !done.is_ok_and(|s| s.success()) {
        return Ok(bytes);
    }
    let small = fs::read(&to)?;
    fs::remove_file(&to)?;
    Ok(small)
}

/// Absolute paths of what `ldd` names: the loader and the libraries.
fn libraries(program: &Path) -> Result<BTreeSet<String>> {
    let out = Command::new("ldd").arg(program).output().context("starting ldd")?;
    if !out.status.success() {
        // ldd's way of saying that there is nothing to name: a static program.
        return Ok(BTreeSet::new());
    }
    parse_ldd(&String::from_utf8_lossy(&out.stdout))
        .with_context(|| format!("libraries of {}", program.display()))
}

fn parse_ldd(text: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.trim().strip_suffix("=> not found") {
            bail!("{name} is not on this machine");
        }
        found.extend(line.split_whitespace().find(|w| w.starts_with('/')).map(str::to_owned));
    }
    Ok(found)
}

/// The static busybox, fetched once.
fn busybox(cache: &Path) -> Result<PathBuf> {
    let _lock = lock::take(cache)?;
    let root = cache.join("busybox");
    let candidates = ["bin/busybox", "usr/bin/busybox"].map(|p| root.join(p));
    if !candidates.iter().any(|p| p.exists()) {
        eprintln!("xtask: fetching busybox into {}", root.display());
        let place = files::fresh_folder(cache, "busybox.part")?;
        Apt::open(cache)?.unpack(&["busybox-static".to_owned()], &[], &place)?;
        fs::rename(&place, &root)?;
    }
    candidates
        .into_iter()
        .find(|p| p.exists())
        .with_context(|| format!("no busybox under {}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldds_lines_give_the_loader_and_each_library_once() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n\tstatically linked\n";
        let got: Vec<_> = parse_ldd(text).unwrap().into_iter().collect();
        assert_eq!(got, ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(parse_ldd("\tlibpython3.so => not found\n").is_err());
    }

    #[test]
    fn a_file_goes_to_its_own_place_or_to_files() {
        let here = file!();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(here);
        let plain: File = root.to_str().unwrap().parse().unwrap();
        assert_eq!(plain.to, "files/guest.rs");
        let placed: File = format!("{}:/bin/x", root.display()).parse().unwrap();
        assert_eq!(placed.to, "bin/x");
        assert!("/nowhere/at/all".parse::<File>().is_err());
    }
}
