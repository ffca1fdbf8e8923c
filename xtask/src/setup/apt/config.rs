//! apt's private configuration: our folders, the machine's mirror.
use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::cmd;

/// The keys that sign Debian's suites; the package debian-archive-keyring brings the file.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Writes the configuration for `suites` into `folder`, where all of apt's own files then lie.
pub fn write(folder: &Path, suites: &str) -> Result<()> {
    for part in ["parts", "lists/partial", "archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    fs::write(folder.join("status"), "")?;
    fs::write(folder.join("parts/glake.sources"), sources(&mirror(suites)?, suites))?;
    let acquire = cmd::output(Command::new("apt-config").arg("dump"))?;
    fs::write(folder.join("apt.conf"), conf(folder, &acquire))?;
    Ok(())
}

fn sources(mirror: &str, suites: &str) -> String {
    format!("Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main contrib\nSigned-By: {KEYRING}\n")
}

/// The whole configuration. The machine's is left out, since its hooks would run (and change things) after each
/// `update`; only its `Acquire` part, where proxies are, is taken over.
fn conf(folder: &Path, machine: &str) -> String {
    let f = folder.display();
    let acquire = machine.lines().filter(|l| l.starts_with("Acquire::")).collect::<Vec<_>>().join("\n");
    format!(
        "Dir::Etc::Main \"/dev/null\";\nDir::Etc::Parts \"/dev/null\";\nDir::Etc::SourceList \"/dev/null\";\n\
         Dir::Etc::SourceParts \"{f}/parts\";\nDir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\nDir::State \"{f}\";\nDir::State::Lists \"{f}/lists\";\n\
         Dir::State::status \"{f}/status\";\nDir::Cache \"{f}\";\nDir::Cache::archives \"{f}/archives\";\n\
         APT::Get::List-Cleanup \"true\";\n{acquire}\nAcquire::Languages \"none\";\nAcquire::Retries \"2\";\n"
    )
}

/// The mirror that this machine uses for its own Debian release.
fn mirror(suites: &str) -> Result<String> {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let code = codename(&os).with_context(|| {
        format!("this is no Debian machine, so packages from Debian's {suites} cannot be had by themselves")
    })?;
    for (file, package) in [(KEYRING, "debian-archive-keyring"), ("/usr/bin/gpgv", "gpgv")] {
        if !Path::new(file).is_file() {
            bail!("{file} is missing: install the package {package}, or apt cannot verify signatures");
        }
    }
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]);
    mirror_in(&cmd::output(&mut list)?, &code)
        .with_context(|| format!("apt on this machine has no source for {code} main"))
}

fn mirror_in(targets: &str, codename: &str) -> Option<String> {
    let wanted = format!("{codename} main ");
    targets.lines().find_map(|l| l.strip_prefix(&wanted)).map(str::to_owned)
}

/// The release's name on a Debian machine; `None` elsewhere, derivatives included: their mirrors hold other packages.
fn codename(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        line.map(|v| v.trim_matches('"').to_owned())
    };
    (field("ID")? == "debian").then(|| field("VERSION_CODENAME"))?
}

/// The release's name on this machine, if it runs Debian.
pub fn release() -> Option<String> {
    codename(&fs::read_to_string("/etc/os-release").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_itself_has_debians_mirror() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(), Some("bookworm"));
        assert_eq!(codename("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(codename(""), None);
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
        assert!(sources("s:/b/", "trixie-backports").contains("Signed-By: /"));
    }
}
