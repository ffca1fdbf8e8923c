//! Running other programs: each has a deadline or runs in front of the person, and a failure names the command.
use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Runs `command` with our own stdout sent to stderr, and fails unless it exits with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.stdout(std::io::stderr()).status().with_context(|| shown(command))?;
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

/// What `command` prints on stdout; its stderr becomes part of the error if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output().with_context(|| shown(command))?;
    if !out.status.success() {
        bail!("{}: {}: {}", shown(command), out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    String::from_utf8(out.stdout).with_context(|| format!("{}: output is no text", shown(command)))
}

/// The file that `name` stands for on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The command line as a person would type it, for messages.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_what_it_said() {
        let e = output(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).unwrap_err().to_string();
        assert!(e.contains("sh -c") && e.contains("exit status: 3") && e.contains("no luck"), "{e}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let e = run(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert!(e.contains("no-such-program-here"), "{e}");
    }

    #[test]
    fn only_executables_are_found_on_path() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program-here").is_none());
    }
}
