//! A bpf-linker that reads what this rustc writes.
//!
//! bpf-linker is LLVM with a command line, and LLVM reads bitcode of its own version or older ones only. Its
//! `--version` does not name its LLVM, so one that somebody installed counts only if it links a two-line object of
//! this rustc. Else it is built against the very libLLVM that rustc itself uses: no LLVM need be installed.
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{rust_src::short, rustc::Rustc};
use crate::{cmd, say};

const VERSION: &str = "0.13.0";

/// The smallest object that shows whether a linker reads this rustc's bitcode.
const PROBE: &str = "#![no_std]\n#[unsafe(no_mangle)] pub extern \"C\" fn probe() -> u64 { 0 }\n";

/// The cached linker, if it was built to its end.
pub fn made(cache: &Path, rustc: &Rustc) -> Option<PathBuf> {
    let home = cache.join(key(rustc));
    let built = home.join("bin/bpf-linker");
    (built.is_file() && home.join("complete").is_file()).then_some(built)
}

/// The cached linker, else the one on PATH if it fits, else a newly built one.
pub fn ensure(cache: &Path, rustc: &Rustc) -> Result<PathBuf> {
    if let Some(built) = made(cache, rustc) {
        return Ok(built);
    }
    let home = cache.join(key(rustc));
    let built = home.join("bin/bpf-linker");
    fs::create_dir_all(&home)?;
    if let Some(found) = cmd::on_path("bpf-linker") {
        match links(&found, rustc, &home) {
            Ok(()) => return Ok(found),
            Err(e) => say::step("bpf-linker", &format!("{} does not fit this rustc: {e:#}", found.display())),
        }
    }
    build(&home, rustc)?;
    links(&built, rustc, &home).context("the bpf-linker that was just built does not fit")?;
    fs::write(home.join("complete"), "")?;
    Ok(built)
}

/// The rpath of a built linker points into the sysroot, so another sysroot of the same compiler needs its own.
fn key(rustc: &Rustc) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    rustc.sysroot.hash(&mut hasher);
    format!("bpf-linker-{VERSION}-{}-{:08x}", short(&rustc.version.commit), hasher.finish() as u32)
}

fn build(home: &Path, rustc: &Rustc) -> Result<()> {
    let lib = rustc.sysroot.join("lib");
    let llvm = lib_llvm(&lib)?;
    say::step("bpf-linker", &format!("building {VERSION} against {}; once, about a minute", llvm.display()));
    let prefix = home.join("llvm");
    fs::create_dir_all(prefix.join("lib64"))?;
    let link = prefix.join("lib64/libLLVM.so");
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    symlink(&llvm, &link)?;
    let mut install = Command::new(&rustc.cargo);
    install
        .args(["install", "--quiet", "--locked", "bpf-linker", "--version", VERSION, "--no-default-features"])
        .arg("--features")
        .arg(format!("llvm-{}", rustc.version.llvm))
        .arg("--root")
        .arg(home)
        .arg("--target-dir")
        .arg(home.join("build"))
        .env("LLVM_PREFIX", &prefix)
        .env("RUSTC", &rustc.rustc)
        // All the work is done by LLVM: optimising the thin layer above it only costs build time.
        .envs([("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")])
        .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")])
        .env("CARGO_ENCODED_RUSTFLAGS", format!("-Clink-arg=-Wl,-rpath,{}", lib.display()));
    cmd::run(&mut install)?;
    fs::remove_dir_all(home.join("build"))?;
    Ok(())
}

/// The libLLVM in a sysroot's library folder, under the name that this release gives it.
fn lib_llvm(lib: &Path) -> Result<PathBuf> {
    let names = fs::read_dir(lib).with_context(|| format!("library folder {}", lib.display()))?;
    let mut found: Vec<PathBuf> =
        names.filter_map(|e| Some(e.ok()?.path())).filter(|p| is_lib_llvm(p)).collect();
    // `libLLVM.so.22.1-rust-…` is the library; `libLLVM-22-rust-….so` beside it is a linker script.
    found.sort();
    found.pop().with_context(|| {
        format!(
            "{} has no libLLVM.so: this rustc was built with LLVM inside. Use a toolchain of rustup's, or put a \
             bpf-linker for this rustc's LLVM on PATH",
            lib.display()
        )
    })
}

fn is_lib_llvm(path: &Path) -> bool {
    path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("libLLVM.so"))
}

/// Links the two-line object with `linker`.
fn links(linker: &Path, rustc: &Rustc, scratch: &Path) -> Result<()> {
    let (source, bitcode, object) =
        (scratch.join("probe.rs"), scratch.join("probe.bc"), scratch.join("probe.o"));
    fs::write(&source, PROBE)?;
    // Bitcode of this machine's target serves: what matters is who wrote it. The eBPF target has no core to write with.
    let compile = ["--crate-type=lib", "--emit=llvm-bc", "-Cpanic=abort", "-Copt-level=2", "-o"];
    cmd::output(Command::new(&rustc.rustc).args(compile).arg(&bitcode).arg(&source))?;
    let mut link = Command::new(linker);
    // Cargo's LD_LIBRARY_PATH names the sysroot, and would hide that the linker cannot find its LLVM by itself.
    link.env_remove("LD_LIBRARY_PATH")
        .args(["--target=bpfel", "--export=probe", "-o"])
        .arg(&object)
        .arg(&bitcode);
    cmd::output(&mut link)?;
    if !is_bpf(&fs::read(&object)?) {
        bail!("{} wrote no BPF object", linker.display());
    }
    Ok(())
}

/// `e_machine` of an ELF file, at offset 18 by the ELF specification, is 247 for BPF.
fn is_bpf(elf: &[u8]) -> bool {
    elf.starts_with(b"\x7fELF") && elf.get(18..20) == Some(&247_u16.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_library_is_told_from_the_linker_script_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["libLLVM-22-rust-1.95.0-stable.so", "libLLVM.so.22.1-rust-1.95.0-stable", "librustc_driver.so"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = lib_llvm(dir.path()).unwrap();
        assert_eq!(found.file_name().unwrap(), "libLLVM.so.22.1-rust-1.95.0-stable");
    }

    #[test]
    fn a_toolchain_without_the_library_gets_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let e = lib_llvm(dir.path()).unwrap_err().to_string();
        assert!(e.contains("rustup") && e.contains("PATH"), "{e}");
    }

    #[test]
    fn a_linker_that_exits_well_but_writes_something_else_does_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let fake = dir.path().join("bpf-linker");
        fs::write(&fake, "#!/bin/sh\nfor last; do :; done; cp \"$last\" \"$4\"\n").unwrap();
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
        let e = links(&fake, &Rustc::find().unwrap(), dir.path()).unwrap_err().to_string();
        assert!(e.contains("no BPF object"), "{e}");
    }

    #[test]
    fn only_an_elf_file_for_bpf_is_one() {
        let mut elf = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0";
        assert!(is_bpf(&elf));
        elf[18] = 62;
        assert!(!is_bpf(&elf) && !is_bpf(b"BC\xc0\xde") && !is_bpf(b""));
    }

    #[test]
    fn another_sysroot_or_compiler_needs_its_own_linker() {
        let one = Rustc::find().unwrap();
        let (mut moved, mut newer) = (one.clone(), one.clone());
        moved.sysroot = "/elsewhere".into();
        newer.version.commit = "0123456789abcdef".into();
        assert!(key(&one) != key(&moved) && key(&one) != key(&newer));
        assert_eq!(key(&one), key(&one.clone()));
    }
}
