//! apt's private configuration: our folders, the machine's mirror.
use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::cmd;

/// The keys that sign Debian's suites; the package debian-archive-keyring brings the file.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Writes the configuration into `folder`, where all of apt's own files then lie. True if the sources changed.
pub fn write(folder: &Path, codename: &str) -> Result<bool> {
    for part in ["parts", "lists/partial", "archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let acquire = cmd::output(Command::new("apt-config").arg("dump"))?;
    fs::write(folder.join("apt.conf"), conf(folder, &acquire))?;
    let (file, text) = (folder.join("parts/glake.sources"), sources(&mirror(codename)?, codename));
    let changed = fs::read_to_string(&file).is_ok_and(|old| old == text);
    fs::write(file, text)?;
    Ok(!changed)
}

/// This release, and the two suites that the lab's kernels and the source of Rust's library come from.
fn sources(mirror: &str, codename: &str) -> String {
    format!(
        "Types: deb\nURIs: {mirror}\nSuites: {codename} bookworm-backports trixie-backports\n\
         Components: main contrib\nSigned-By: {KEYRING}\n"
    )
}

/// The whole configuration. The machine's own is left out, since its hooks would run, and change things, after each
/// `update`; only its `Acquire` part, where proxies are, is taken over. dpkg's list of what is installed is only read.
fn conf(folder: &Path, machine: &str) -> String {
    let f = folder.display();
    let acquire = machine.lines().filter(|l| l.starts_with("Acquire::")).collect::<Vec<_>>().join("\n");
    format!(
        "Dir::Etc::Main \"/dev/null\";\nDir::Etc::Parts \"/dev/null\";\nDir::Etc::SourceList \"/dev/null\";\n\
         Dir::Etc::SourceParts \"{f}/parts\";\nDir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\nDir::State::Lists \"{f}/lists\";\nDir::Cache \"{f}\";\n\
         Dir::Cache::archives \"archives\";\n{acquire}\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAPT::Sandbox::User \"\";\n\
         Debug::NoLocking \"1\";\n"
    )
}

/// The mirror that this machine's own apt configuration uses for its release.
fn mirror(codename: &str) -> Result<String> {
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]);
    mirror_in(&cmd::output(&mut list)?, codename)
        .with_context(|| format!("apt's configuration names no mirror for {codename} main"))
}

fn mirror_in(targets: &str, codename: &str) -> Option<String> {
    let wanted = format!("{codename} main ");
    targets.lines().find_map(|l| l.strip_prefix(&wanted)).map(str::to_owned)
}

/// The release's name, on a Debian machine that can verify packages; else what is missing.
pub fn codename() -> Result<String> {
    let os = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = codename_in(&os)?;
    for (file, package) in [(KEYRING, "debian-archive-keyring"), ("/usr/bin/gpgv", "gpgv")] {
        if !Path::new(file).is_file() {
            bail!("{file} is missing: install the package {package}, or apt cannot verify signatures");
        }
    }
    Ok(codename)
}

/// Derivatives are refused: their mirrors hold other packages.
fn codename_in(os_release: &str) -> Result<String> {
    let field = |key: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        line.map(|v| v.trim_matches('"').to_owned())
    };
    let id = field("ID").unwrap_or_default();
    if id != "debian" {
        bail!(
            "this is {id:?}, and xtask fetches packages on Debian only. Missing here, to be installed by hand: the \
             source of Rust's core library (`rustup component add rust-src`); for the lab qemu-system-x86_64 (7.2 or \
             newer), or run `cargo xtask` in a Debian container, since the lab boots Debian's kernels"
        );
    }
    field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_itself_has_debians_mirror_and_others_are_told_what_is_missing() {
        assert_eq!(codename_in("ID=debian\nVERSION_CODENAME=bookworm\n").unwrap(), "bookworm");
        let e = codename_in("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n").unwrap_err().to_string();
        assert!(e.contains("ubuntu") && e.contains("rust-src") && e.contains("qemu-system"), "{e}");
        assert!(codename_in("").is_err());
    }

    #[test]
    fn the_mirror_is_that_of_the_release_not_of_its_security_suite() {
        let targets = "bookworm-security main s:/sec/\nbookworm-updates main s:/a/\nbookworm main s:/b/\n";
        assert_eq!(mirror_in(targets, "bookworm").as_deref(), Some("s:/b/"));
        assert_eq!(mirror_in(targets, "trixie"), None);
    }

    #[test]
    fn proxies_are_taken_over_and_hooks_are_not() {
        let machine =
            "APT::Update::Post-Invoke:: \"touch /x\";\nAcquire::http::Proxy \"p\";\nDir::Etc \"etc/apt\";";
        let conf = conf(Path::new("/c"), machine);
        assert!(conf.contains("Acquire::http::Proxy \"p\";"));
        assert!(!conf.contains("Post-Invoke") && !conf.contains("etc/apt"));
    }

    #[test]
    fn every_source_names_the_keys_it_must_be_signed_with() {
        assert!(sources("s:/b/", "bookworm").contains("Signed-By: /"));
    }
}
