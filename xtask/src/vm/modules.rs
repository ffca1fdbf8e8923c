//! Kernel modules for the guest: found by name, ordered by their own `depends=`, decompressed.

use super::kernel::Kernel;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One module, ready to be inserted.
pub(super) struct Module {
    /// With underscores, as /proc/modules spells it.
    pub(super) name: String,
    /// All that must be inserted before it, in order.
    pub(super) needs: Vec<String>,
    /// The decompressed file.
    pub(super) bytes: Vec<u8>,
}

/// Modules in an order in which each comes after those that it needs.
#[derive(Default)]
pub(super) struct Modules {
    /// What to insert, in order.
    pub(super) list: Vec<Module>,
}

/// Resolves `names` against the kernel's module folder. A name that is built in, or that begins with `?` and does not
/// exist, adds nothing.
pub(super) fn resolve(kernel: &Kernel, busybox: &Path, names: &[&str]) -> Result<Modules> {
    let folder = kernel.modules()?;
    let mut files = HashMap::new();
    index(&folder.join("kernel"), &mut files)?;
    let builtin = fs::read_to_string(folder.join("modules.builtin")).context("reading modules.builtin")?;
    let builtin: Vec<String> = builtin.lines().map(|l| module_name(Path::new(l))).collect();
    let mut modules = Modules::default();
    let finder = Finder { files, builtin, busybox };
    for name in names {
        let (optional, name) = name.strip_prefix('?').map_or((false, *name), |n| (true, n));
        let name = name.replace('-', "_");
        if optional && !finder.files.contains_key(&name) {
            continue;
        }
        finder.add(&name, &mut modules, 0)?;
    }
    Ok(modules)
}

struct Finder<'a> {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
    busybox: &'a Path,
}

impl Finder<'_> {
    fn add(&self, name: &str, into: &mut Modules, depth: usize) -> Result<()> {
        // The longest chain in Debian's kernels is under 10: more is a circle.
        ensure!(depth < 32, "modules depend on each other in a circle at {name}");
        if self.builtin.iter().any(|b| b == name) || into.list.iter().any(|m| m.name == name) {
            return Ok(());
        }
        let path = self.files.get(name).with_context(|| format!("this kernel has no module {name}"))?;
        let bytes = self.read(path)?;
        let mut needs: Vec<String> = Vec::new();
        for dependency in depends(&bytes) {
            self.add(&dependency, into, depth + 1)?;
            let Some(module) = into.list.iter().find(|m| m.name == dependency) else { continue };
            for name in module.needs.iter().chain([&dependency]) {
                if !needs.contains(name) {
                    needs.push(name.clone());
                }
            }
        }
        into.list.push(Module { name: name.to_owned(), needs, bytes });
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("ko") => fs::read(path).with_context(|| format!("reading {}", path.display())),
            Some("xz") => {
                let file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
                let out = Command::new(self.busybox)
                    .args(["xz", "-dc"])
                    .stdin(file)
                    .stderr(Stdio::inherit())
                    .output()?;
                ensure!(out.status.success(), "{} does not decompress: {}", path.display(), out.status);
                Ok(out.stdout)
            }
            other => bail!("{}: no way to read a module compressed as {other:?}", path.display()),
        }
    }
}

/// Every `*.ko*` below `folder` by module name.
fn index(folder: &Path, into: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            index(&path, into)?;
        } else if path.to_string_lossy().contains(".ko") {
            into.insert(module_name(&path), path);
        }
    }
    Ok(())
}

/// `kernel/crypto/crc32c_generic.ko.xz` is `crc32c_generic`; the kernel takes `-` and `_` for the same.
fn module_name(path: &Path) -> String {
    let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

impl Module {
    /// The names that the kernel may ask for it by, such as `fs-ext2`.
    pub(super) fn aliases(&self) -> Vec<String> {
        let key = b"\0alias=";
        let at = self
            .bytes
            .windows(key.len())
            .enumerate()
            .filter(|(_, w)| *w == key)
            .map(|(at, _)| at + key.len());
        at.map(|at| String::from_utf8_lossy(until_nul(&self.bytes[at..])).into_owned()).collect()
    }
}

/// The .modinfo section is a row of NUL-ended `key=value` texts.
fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}

/// The names in a module's `depends=` entry.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|w| w == key) else { return Vec::new() };
    let value = until_nul(&module[at + key.len()..]);
    let text = String::from_utf8_lossy(value);
    text.split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modules_needs_are_read_from_its_own_entry() {
        assert_eq!(depends(b"x\0alias=pci\0depends=nvme-core,t10_pi\0name=nvme\0"), ["nvme_core", "t10_pi"]);
        assert_eq!(depends(b"x\0depends=\0name=nvme_core\0"), Vec::<String>::new());
        assert_eq!(depends(b""), Vec::<String>::new());
    }

    #[test]
    fn a_modules_name_has_underscores_and_no_ending() {
        assert_eq!(module_name(Path::new("kernel/drivers/nvme/host/nvme-core.ko.xz")), "nvme_core");
        assert_eq!(module_name(Path::new("kernel/block/bfq.ko")), "bfq");
    }
}
