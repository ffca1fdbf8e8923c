//! Programs under `glake exec`, `glake ab` and `python -m glake`, with a torch of a few lines: what GLake asks of torch, and no GPU.

use std::path::Path;
use std::process::Command;

use super::{command, python};

/// What of torch the package touches outside the adapter. Memory is what the script says it is.
const TORCH: &str = "
import sys, types, shutil, os
__version__ = '0.0'
class cuda:
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    reserved = {'off': 200, 'on': 150}.get(os.environ.get('GLAKE_MODE', ''), 200)
    _lazy_call = staticmethod(lambda work: work())
    @staticmethod
    def memory_stats(device):
        return {'reserved_bytes.all.peak': cuda.reserved << 20, 'allocated_bytes.all.peak': 90 << 20, 'num_ooms': 0}
    class memory:
        _record_memory_history = staticmethod(lambda **how: None)
        _dump_snapshot = staticmethod(lambda path: shutil.copy(os.environ['SNAPSHOT'], path))
hooks = []
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
optim = types.ModuleType('torch.optim')
optim.Optimizer = Optimizer
optimizer = types.ModuleType('torch.optim.optimizer')
optimizer.register_optimizer_step_post_hook = hooks.append
sys.modules['torch.optim'], sys.modules['torch.optim.optimizer'] = optim, optimizer
";

const TRAIN: &str = "
import torch, os, sys
first, second = torch.optim.Optimizer(), torch.optim.Optimizer()
for step in range(1000):
    first.step(); second.step()
    noise = float(os.environ.get('NOISE', '0')) if os.environ.get('GLAKE_MODE') == 'on' else 0
    print(f'step {step} loss: {1 / (step + 1) + noise}')
    if os.environ.get('DIES'):
        sys.exit(3)
print('never')
";

/// A folder with the torch and the script.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("torch")).unwrap();
    std::fs::write(folder.path().join("torch/__init__.py"), TORCH).unwrap();
    std::fs::write(folder.path().join("train.py"), TRAIN).unwrap();
    folder
}

fn glake(python: &Path, folder: &Path, words: &[&str], env: &[(&str, &str)]) -> super::Ran {
    let mut glake = Command::new(python.with_file_name("glake"));
    glake.args(words).arg("--").arg(python).arg(folder.join("train.py"));
    let paths = [("PYTHONPATH", folder.to_str().unwrap())];
    command(&mut glake, &[&paths, env].concat())
}

#[test]
fn ab_runs_both_ways_and_tells_memory_steps_and_losses() {
    let Some(python) = python() else { return };
    let folder = workplace();
    let ran = glake(python, folder.path(), &["ab", "--runs", "2", "--steps", "12", "--json"], &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["reserved_ratio"], 0.75, "{answer}");
    for side in ["off", "on"] {
        // 12 steps of the first optimiser are 11 times; the first five are left out, of two runs each way.
        assert_eq!((&answer[side]["steps"], &answer[side]["runs"]), (&12.into(), &2.into()), "{answer}");
    }
    let ratio = &answer["step_ratio"];
    assert!(ratio["low"].as_f64().unwrap() <= ratio["ratio"].as_f64().unwrap(), "{answer}");
    assert_eq!(answer["loss_equal"], true);
    let turns: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("glake ab: run")).collect();
    assert!(turns[0].ends_with("off") && turns[1].ends_with("on") && turns[2].ends_with("off"), "{turns:?}");
    assert!(!ran.stderr.contains("never"), "the run ends after its steps");
}

#[test]
fn ab_says_that_losses_differ_and_that_a_run_failed() {
    let Some(python) = python() else { return };
    let folder = workplace();
    let ran = glake(python, folder.path(), &["ab", "--runs", "1", "--steps", "9"], &[("NOISE", "1e-9")]);
    assert!(ran.code == 0 && ran.stdout.contains("LOSS        not equal\n"), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("time per step: unknown"), "one run each way has no spread: {}", ran.stdout);
    let ran = glake(python, folder.path(), &["ab", "--runs", "1"], &[("DIES", "1")]);
    assert!(ran.code == 1 && ran.stderr.contains("ended with code 3"), "{}{}", ran.stdout, ran.stderr);
    let ran = glake(python, folder.path(), &["ab"], &[("GLAKE_DISABLE", "1")]);
    assert!(ran.code == 2 && ran.stderr.contains("GLAKE_DISABLE"), "{}", ran.stderr);
}

#[test]
fn the_interval_claims_only_what_it_excludes() {
    let Some(python) = python() else { return };
    let script = "
from glake.ab import interval
print(interval([(1, 1)]))
print(interval([(1.0, 1.1), (1.0, 1.2)])['claim'][:13])
print(interval([(1.0, 1.10), (1.0, 1.11), (2.0, 2.21), (1.0, 1.10)])['claim'])
print(interval([(1.0, 0.90), (1.0, 0.91), (9.0, 8.10), (1.0, 0.90)])['claim'])
";
    let ran = super::run(python, script, &[]);
    assert_eq!(
        ran.stdout.lines().collect::<Vec<_>>(),
        ["None", "no difference", "slower", "faster"],
        "{}",
        ran.stderr
    );
}

#[test]
fn observe_reports_in_three_lines_and_leaves_the_program_alone() {
    let Some(python) = python() else { return };
    let folder = workplace();
    let snapshot =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("data/snapshots/memory_forward_fp32_128.pickle");
    let env = [("GLAKE_MODE", "observe"), ("SNAPSHOT", snapshot.to_str().unwrap()), ("DIES", "1")];
    let ran = glake(python, folder.path(), &["exec"], &env);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "step 0 loss: 1.0\n"), "{}", ran.stderr);
    let said: Vec<&str> = ran.stderr.lines().filter(|l| l.contains(": observe: ")).collect();
    assert_eq!(said.len(), 3, "{}", ran.stderr);
    assert!(said[0].contains("peak allocated") && said[1].contains("expandable_segments"), "{said:?}");
}

#[test]
fn a_program_under_dash_m_keeps_its_arguments_and_its_exit_code_and_its_children_are_reached() {
    let Some(python) = python() else { return };
    let folder = workplace();
    let script = "import sys, os, subprocess, glake
print(sys.argv[1:], __name__, glake.state() is not None)
child = 'import torch, glake; print(glake.state() is not None)'
sys.stdout.flush()
subprocess.run([sys.executable, '-c', child], check=True)
sys.exit(7)
";
    let path = folder.path().join("program.py");
    std::fs::write(&path, script).unwrap();
    let mut program = Command::new(python);
    program.args(["-m", "glake"]).arg(&path).args(["--lr", "1"]);
    let ran = command(&mut program, &[("PYTHONPATH", folder.path().to_str().unwrap())]);
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "['--lr', '1'] __main__ True\nTrue\n"), "{}", ran.stderr);
}
