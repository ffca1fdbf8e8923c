//! One file per subcommand. Results on stdout, talk on stderr; a broken pipe is success.

use std::process::ExitCode;

/// Exit codes are an interface: `docs/cli.md` lists them.
pub mod exit {
    /// Everything asked for was done.
    pub const OK: u8 = 0;
    /// The command failed; stderr says what, with the remedy. For `doctor`: warnings.
    pub const FAILED: u8 = 1;
    /// The command line or configuration is wrong. For `doctor`: failures.
    pub const USAGE: u8 = 2;
    /// Done, but in part: something wanted could not be watched.
    pub const DEGRADED: u8 = 3;
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    ExitCode::from(exit::OK)
}
