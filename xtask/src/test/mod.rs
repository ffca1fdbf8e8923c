//! `cargo xtask test`: everything the CI runs, in stages, each with its time, closed by one line of counts.
mod count;
mod fuzz;
mod stages;
mod tracefs;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
pub use count::Counts;
use stages::{Lab, STAGES, Stage};

use crate::{say, tree::Tree};

/// Arguments of `cargo xtask test`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Run only this stage (may be given more than once)
    #[arg(long = "stage", value_name = "NAME")]
    stages: Vec<String>,
    /// List the stages
    #[arg(long)]
    list: bool,
    /// Kernels for the lab: `lts`, `newest` or a version
    #[arg(long = "kernel", value_name = "KERNEL", default_values = ["lts", "newest"])]
    kernels: Vec<String>,
}

/// Runs the stages. The exit code is 0 only if nothing failed.
pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    if args.list {
        for stage in STAGES {
            println!("{:<12} {}", stage.name, stage.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    tracefs::provide();
    let lab = Lab { tree: tree.clone(), kernels: args.kernels.join(" ") };
    let mut total = Counts::default();
    let mut times = Vec::new();
    for stage in chosen(&args.stages)? {
        let start = Instant::now();
        say::step("test", &format!("stage {}: {}", stage.name, stage.about));
        let counts = (stage.run)(&lab).unwrap_or_else(|e| {
            say::error(&e);
            Counts::one(false)
        });
        total += counts;
        times.push(format!("{:<12} {:>14}   {counts}", stage.name, say::time(start.elapsed())));
        say::step("test", &format!("stage {} took {}: {counts}", stage.name, say::time(start.elapsed())));
        if stage.needed && counts.failed > 0 {
            say::step("test", "the other stages need this one");
            break;
        }
    }
    println!("{}\n\n{total}", times.join("\n"));
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The stages named, in their own order; all of them if none is.
fn chosen(names: &[String]) -> Result<Vec<&'static Stage>> {
    for name in names {
        let known = STAGES.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        ensure!(STAGES.iter().any(|s| s.name == name), "there is no stage {name:?}: {known}");
    }
    Ok(STAGES.iter().filter(|s| names.is_empty() || names.iter().any(|n| n == s.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_chosen_by_name_and_an_unknown_one_is_refused() {
        let names = |stages: Vec<&Stage>| stages.iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names(chosen(&["unit".into()]).unwrap()), ["unit"]);
        assert_eq!(chosen(&[]).unwrap().len(), STAGES.len());
        let e = chosen(&["unti".into()]).unwrap_err().to_string();
        assert!(e.contains("unti") && e.contains("unit"), "{e}");
    }

    #[test]
    fn stages_run_in_their_own_order() {
        let chosen = chosen(&["unit".into(), "tools".into()]).unwrap();
        assert_eq!(chosen.iter().map(|s| s.name).collect::<Vec<_>>(), ["tools", "unit"]);
    }
}
