//! `cargo xtask dist`: what a host without a toolchain needs, in one archive and a wheel.
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::{build::Profile, cmd, say, shipped, tree::Tree, wheel};

/// Files of the tree that go along. The eBPF programs are inside the binary; their licence goes beside it.
const FILES: &[&str] =
    &["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "glake-ebpf/LICENSE-GPL2"];

/// Folders of the tree that go along whole.
const FOLDERS: &[&str] = &["deploy", "docs"];

/// Makes the archive, the wheel and their checksums in `target/dist` and prints the archive's path.
pub fn run(tree: &Tree) -> Result<()> {
    let built = shipped::build(tree)?;
    let glake = built.join("glake");
    let name = format!("glake-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let dist = tree.target.join("dist");
    let folder = dist.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for file in ["glake", "libglake_cuda.so"] {
        fs::copy(built.join(file), folder.join(file))?;
    }
    for file in FILES {
        let from = tree.root.join(file);
        let to = folder.join(Path::new(file).file_name().context("a file has a name")?);
        fs::copy(&from, to).with_context(|| from.display().to_string())?;
    }
    for more in FOLDERS {
        cmd::run(Command::new("cp").arg("-r").arg(tree.root.join(more)).arg(&folder))?;
    }
    pages(&glake, &folder)?;
    let archive = format!("{name}.tar.gz");
    pack(&dist, &name, &archive)?;
    let wheel = wheel::build(tree, Profile::Release)?;
    let name = wheel.file_name().context("a wheel has a name")?.to_owned();
    fs::copy(&wheel, dist.join(&name))?;
    let sums = cmd::output(Command::new("sha256sum").current_dir(&dist).arg(&archive).arg(&name))?;
    fs::write(dist.join("SHA256SUMS"), sums)?;
    println!("{}", dist.join(archive).display());
    Ok(())
}

/// Manual pages and completions, which the binary itself makes.
fn pages(glake: &Path, folder: &Path) -> Result<()> {
    cmd::run(Command::new(glake).arg("man").arg(folder.join("man")))?;
    fs::create_dir_all(folder.join("completions"))?;
    for (shell, file) in [("bash", "glake.bash"), ("zsh", "_glake"), ("fish", "glake.fish")] {
        let script = cmd::output(Command::new(glake).args(["completions", shell]))?;
        fs::write(folder.join("completions").join(file), script)?;
    }
    Ok(())
}

/// The same files give the same bytes: order, owner and times are fixed.
fn pack(dist: &Path, name: &str, archive: &str) -> Result<()> {
    say::step("dist", archive);
    let mut tar = Command::new("tar");
    tar.current_dir(dist).args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    let mut tar =
        tar.args(["--mtime=@0", "--mode=u+w,go=rX", name]).stdout(Stdio::piped()).spawn().context("tar")?;
    let mut gzip = Command::new("gzip");
    gzip.args(["-9", "--no-name"]).stdin(tar.stdout.take().context("tar has no stdout")?);
    let status = gzip.stdout(fs::File::create(dist.join(archive))?).status().context("gzip")?;
    anyhow::ensure!(tar.wait()?.success() && status.success(), "packing {archive} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_archive_at_any_time() {
        let dist = tempfile::tempdir().unwrap();
        let file = dist.path().join("glake-1/glake");
        fs::create_dir(dist.path().join("glake-1")).unwrap();
        let pack_at = |seconds: u64, archive: &str| {
            fs::write(&file, "binary").unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
            pack(dist.path(), "glake-1", archive).unwrap();
            fs::read(dist.path().join(archive)).unwrap()
        };
        assert_eq!(pack_at(1_000_000_000, "a"), pack_at(1_500_000_000, "b"));
    }

    #[test]
    fn every_file_that_goes_along_is_in_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in FILES {
            assert!(root.join(file).is_file(), "{file} is missing");
        }
        for folder in FOLDERS {
            assert!(root.join(folder).is_dir(), "{folder} is missing");
        }
    }

    #[test]
    fn what_is_installed_by_hand_is_in_the_archive() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = fs::read_to_string(root.join("docs/install.md")).unwrap();
        let installs = page.lines().filter(|line| line.starts_with("sudo install "));
        let made = [
            "glake",
            "libglake_cuda.so",
            "man/*.1",
            "completions/glake.bash",
            "completions/_glake",
            "completions/glake.fish",
        ];
        let mut seen = 0;
        for line in installs {
            let words: Vec<&str> = line.split(' ').collect();
            let file = words.iter().skip(2).find(|w| !w.starts_with(['-', '/', '6', '7'])).unwrap();
            assert!(made.contains(file) || root.join(file).is_file(), "{line}: there is no {file}");
            seen += 1;
        }
        assert_eq!(seen, 9);
    }
}
