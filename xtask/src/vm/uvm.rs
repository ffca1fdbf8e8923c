//! NVIDIA's own nvidia-uvm module for a guest without a GPU: Debian's source package built against Debian's headers,
//! with a stand-in for nvidia.ko and a test module beside it (`tests/lab/uvm`). Built once for each kernel, driver
//! release and state of our sources.
//!
//! What the build must know, each learned from a build that failed:
//! - nvidia-uvm needs the compile tests that only nvidia.ko's Kbuild file registers: a module of just those lines.
//! - The kernel checks symbol versions, so the stand-in must be linked in the same run of modpost; what it must
//!   export is only known after a first run without it.
//! - Debian's headers name one absolute path.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::guest::File;
use super::kernel::Kernel;
use crate::setup::apt::Apt;
use crate::{cmd, files, say};

/// The suite whose driver package is built.
const SUITE: &str = "trixie-backports";
const PACKAGE: &str = "nvidia-open-kernel-dkms";

/// Our sources, by name in the driver's tree.
const SOURCES: [(&str, &str); 6] = [
    ("glake/glake.Kbuild", include_str!("../../../tests/lab/uvm/modules.Kbuild")),
    ("glake/stub.c", include_str!("../../../tests/lab/uvm/stub.c")),
    ("glake/generated.c", "// Filled in once it is known what is missing.\n"),
    ("glake/lab.c", include_str!("../../../tests/lab/uvm/lab.c")),
    ("glake/xid.c", include_str!("../../../tests/lab/uvm/xid.c")),
    ("glake/xid_trace.h", include_str!("../../../tests/lab/uvm/xid_trace.h")),
];
/// The program that causes known counts.
const LOAD: &str = include_str!("../../../tests/lab/uvm/uvmload.c");
/// What the guest gets.
const RESULTS: [&str; 5] = ["nvidia.ko", "nvidia-uvm.ko", "glake_uvm_lab.ko", "glake_xid_lab.ko", "uvmload"];

/// The modules and the load program as files for a guest: /uvm/*.ko and /bin/uvmload.
pub(super) fn get(cache: &Path, kernel: &Kernel, driver: &str) -> Result<Vec<File>> {
    let apt = Apt::open(cache)?;
    let version = apt.show(PACKAGE, SUITE)?.version;
    ensure!(version.starts_with(driver), "Debian's {PACKAGE} is {version}: --uvm {driver} cannot be built");
    let place = cache.join("uvm").join(format!("{}-{version}-{:08x}", kernel.release, state()));
    if !place.exists() {
        build(cache, &apt, kernel, &place)?;
    }
    let file = |name: &&str| {
        let folder = if name.ends_with(".ko") { "uvm" } else { "bin" };
        File { from: place.join(name), to: format!("{folder}/{name}") }
    };
    Ok(RESULTS.iter().map(file).collect())
}

/// Changes when one of our sources or the recipe below does.
fn state() -> u32 {
    let mut hasher = DefaultHasher::new();
    (SOURCES, LOAD, include_str!("uvm.rs")).hash(&mut hasher);
    hasher.finish() as u32
}

fn build(cache: &Path, apt: &Apt, kernel: &Kernel, to: &Path) -> Result<()> {
    say::step("vm", "building nvidia-uvm for the guest; once, 3 to 5 minutes on 2 cores");
    let work = files::fresh_folder(cache, "uvm-build")?;
    let tree = Tree::unpack(apt, kernel, &work)?;
    let pahole = pahole(cache, apt)?;
    // Another set of modules or flags would compile everything again: the second run differs in one file only.
    tree.make(&pahole, "KBUILD_MODPOST_WARN=1").context("nvidia-uvm does not build")?;
    fs::write(tree.driver.join("glake/generated.c"), tree.missing_symbols()?)?;
    tree.make(&pahole, "KBUILD_MODPOST_WARN=").context("the modules do not link")?;
    let done = files::fresh_folder(cache, "uvm-done")?;
    for name in RESULTS.iter().filter(|n| n.ends_with(".ko")) {
        // The debugging information is 50 MB; BTF stays.
        let mut strip = Command::new("strip");
        cmd::output(strip.arg("--strip-debug").arg("-o").arg(done.join(name)).arg(tree.driver.join(name)))?;
        // The kernel's build only warns when it cannot write BTF.
        let sections = cmd::output(Command::new("readelf").args(["-SW"]).arg(done.join(name)))?;
        ensure!(
            sections.contains(" .BTF "),
            "{name} was built without BTF: is {} a working pahole?",
            pahole.display()
        );
    }
    tree.load_program(&done.join("uvmload"))?;
    fs::create_dir_all(to.parent().context("no folder for the modules")?)?;
    fs::rename(&done, to).with_context(|| format!("moving {} into place", done.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))
}

/// The driver's source, and the headers of the kernel that it is built for.
struct Tree {
    driver: PathBuf,
    /// `linux-headers-6.12.95+deb12`, to which `-common` and `-amd64` are added.
    headers: PathBuf,
    compiler: String,
}

impl Tree {
    fn unpack(apt: &Apt, kernel: &Kernel, work: &Path) -> Result<Tree> {
        let release = kernel.release.strip_suffix("-amd64").context("only amd64 kernels are built for")?;
        let packages = [
            format!("{PACKAGE}/{SUITE}"),
            format!("linux-headers-{release}-amd64"),
            format!("linux-headers-{release}-common"),
            format!("linux-kbuild-{release}"),
        ];
        apt.unpack(&packages, &[], work)?;
        let src = work.join("usr/src");
        let headers = src.join(format!("linux-headers-{release}"));
        let folder = |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("nvidia-"));
        let driver = fs::read_dir(&src)?.filter_map(|e| Some(e.ok()?.path())).find(|p| folder(p));
        let driver = driver.with_context(|| format!("{PACKAGE} has no source in {}", src.display()))?;
        let makefile = src.join(format!("linux-headers-{release}-amd64/Makefile"));
        let text = fs::read_to_string(&makefile).with_context(|| format!("{}", makefile.display()))?;
        fs::write(&makefile, text.replace("/usr/src/", &format!("{}/", src.display())))?;
        let config = fs::read_to_string(src.join(format!("linux-headers-{release}-amd64/.config")))?;
        let tree = Tree { driver, headers, compiler: compiler(&config)? };
        tree.add_ours()?;
        Ok(tree)
    }

    /// The module of compile tests, and our own.
    fn add_ours(&self) -> Result<()> {
        let mut tests = String::new();
        for entry in fs::read_dir(self.driver.join("nvidia"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "Kbuild") {
                let text = fs::read_to_string(&path)?;
                let lines = text.lines().filter(|l| l.starts_with("NV_CONFTEST_") && l.contains("+="));
                lines.for_each(|line| _ = writeln!(tests, "{line}"));
            }
        }
        ensure!(!tests.is_empty(), "the driver's source registers no compile tests: its layout has changed");
        for folder in ["nvconf", "glake"] {
            fs::create_dir_all(self.driver.join(folder))?;
        }
        fs::write(self.driver.join("nvconf/nvconf.Kbuild"), tests)?;
        for (name, text) in SOURCES {
            fs::write(self.driver.join(name), text)?;
        }
        Ok(())
    }

    fn make(&self, pahole: &Path, modpost: &str) -> Result<()> {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut make = Command::new("make");
        // Cargo's settings for C compilers and make's own job server are not for the kernel's build.
        make.env_remove("MAKEFLAGS")
            .env_remove("CARGO_MAKEFLAGS")
            .env_remove("CC")
            .env_remove("LD_LIBRARY_PATH");
        make.arg("-C").arg(&self.driver).arg(format!("-j{jobs}")).arg("modules");
        make.arg(format!("SYSSRC={}-common", self.headers.display()));
        make.arg(format!("SYSOUT={}-amd64", self.headers.display()));
        // The driver's Makefile hands on only some variables: pahole must be found on PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        let folder = pahole.parent().unwrap_or(pahole).display();
        make.env("PATH", format!("{folder}:{path}")).arg(format!("CC={}", self.compiler));
        make.arg("NV_KERNEL_MODULES=nvconf nvidia-uvm glake").arg(modpost);
        cmd::output(&mut make).map(|_| ())
    }

    /// C code that defines every symbol that nvidia-uvm asks for and neither the kernel nor our stand-in has.
    fn missing_symbols(&self) -> Result<String> {
        let wanted = cmd::output(Command::new("nm").arg("-u").arg(self.driver.join("nvidia-uvm.o")))?;
        let symvers = format!("{}-amd64/Module.symvers", self.headers.display());
        let kernel = fs::read_to_string(&symvers).with_context(|| symvers.clone())?;
        let (_, stub) = SOURCES[1];
        Ok(generated(&wanted, &kernel, stub))
    }

    /// The load program speaks the ioctls of this very release.
    fn load_program(&self, to: &Path) -> Result<()> {
        let source = self.driver.join("glake/uvmload.c");
        fs::write(&source, LOAD)?;
        let mut compile = Command::new(&self.compiler);
        compile.args(["-O1", "-Wall", "-D__linux__", "-I"]).arg(self.driver.join("nvidia-uvm"));
        compile.arg("-I").arg(self.driver.join("common/inc")).arg(source).arg("-o").arg(to);
        cmd::output(&mut compile).map(|_| ())
    }
}

/// The compiler that the kernel was built with: another one's modules may not load, and inline differently.
fn compiler(config: &str) -> Result<String> {
    let line = config.lines().find_map(|l| l.strip_prefix("CONFIG_CC_VERSION_TEXT=\""));
    let program = line.and_then(|l| l.split(' ').next()).context("the kernel's .config names no compiler")?;
    // Debian writes x86_64-linux-gnu-gcc-12, which is the same program as gcc-12.
    let short = program.find("gcc").map_or(program, |at| &program[at..]);
    for tool in [short, "make", "strip", "nm"] {
        if cmd::on_path(tool).is_none() {
            bail!(
                "building nvidia-uvm needs {tool}: apt-get install {short} make binutils libc6-dev libelf1"
            );
        }
    }
    Ok(short.to_owned())
}

/// `nm -u` of the module, the kernel's Module.symvers, and the stand-in's own text.
fn generated(wanted: &str, kernel: &str, stub: &str) -> String {
    let exported: BTreeSet<&str> = kernel.lines().filter_map(|l| l.split('\t').nth(1)).collect();
    let wanted: BTreeSet<&str> = wanted.lines().filter_map(|l| l.split_whitespace().nth(1)).collect();
    let mut text =
        "// Made by xtask: every call to the resource manager that the stand-in does not answer itself.\n\
                    #include <linux/module.h>\n"
            .to_owned();
    // Names with two underscores are the linker's own, such as __this_module.
    let open = wanted.difference(&exported).filter(|s| !s.starts_with("__"));
    for symbol in open.filter(|s| !stub.contains(&format!("EXPORT_SYMBOL({s});"))) {
        // 0x56 is NV_ERR_NOT_SUPPORTED.
        let _ = writeln!(
            text,
            "int {symbol}(void);\nint {symbol}(void) {{ return 0x56; }}\nEXPORT_SYMBOL({symbol});"
        );
    }
    text
}

/// pahole writes the module's BTF. The one on PATH, else Debian's from the cache.
fn pahole(cache: &Path, apt: &Apt) -> Result<PathBuf> {
    if let Some(found) = cmd::on_path("pahole") {
        return Ok(found);
    }
    let root = cache.join("pahole");
    let wrapper = root.join("pahole");
    if !wrapper.exists() {
        let place = files::fresh_folder(cache, "pahole")?;
        apt.unpack_closure("pahole", &place)?;
        let lib = root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
        let program = root.join("usr/bin/pahole");
        let text =
            format!("#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n", lib.display(), program.display());
        fs::write(place.join("pahole"), text)?;
        cmd::output(Command::new("chmod").arg("755").arg(place.join("pahole")))?;
        fs::rename(&place, &root)?;
    }
    Ok(wrapper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_else_defines_is_made() {
        let wanted = "                 U nvUvmInterfaceDupMemory\n                 U nvUvmInterfaceSessionCreate\n\
                      \x20                U __this_module\n                 U kfree\n";
        let kernel = "0x1234\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n";
        let text = generated(wanted, kernel, "EXPORT_SYMBOL(nvUvmInterfaceSessionCreate);");
        assert!(text.contains("int nvUvmInterfaceDupMemory(void) { return 0x56; }"));
        assert_eq!(text.matches("EXPORT_SYMBOL").count(), 1, "{text}");
    }

    #[test]
    fn the_kernels_own_compiler_is_used() {
        let config =
            "CONFIG_X=y\nCONFIG_CC_VERSION_TEXT=\"x86_64-linux-gnu-gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";
        if cmd::on_path("gcc-12").is_some() {
            assert_eq!(compiler(config).unwrap(), "gcc-12");
        }
        assert!(compiler("CONFIG_X=y\n").is_err());
    }
}
