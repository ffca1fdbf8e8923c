//! Guests for tests: one boot serves many tests, and each test names the kernel that it ran on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use glake::events::sample::Sample;
use libtest_mimic::{Failed, Trial};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A kernel of the lab.
#[derive(Clone)]
pub struct Kernel {
    /// As `cargo xtask vm --kernel` takes it.
    name: String,
    /// 6.12.95.
    pub version: String,
}

/// The kernels that `cargo xtask test` wants tested; none in a bare `cargo test`, which cannot boot them.
pub fn kernels() -> Vec<Kernel> {
    let names = std::env::var("GLAKE_LAB_KERNELS").unwrap_or_default();
    let resolve = |name: &str| {
        let out = xtask().args(["vm", "--resolve", "--kernel", name]).output().expect("xtask starts");
        let release = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        assert!(!release.is_empty(), "no kernel {name}: {}", String::from_utf8_lossy(&out.stderr));
        let version = release.split(['+', '-']).next().unwrap_or(&release).to_owned();
        Kernel { name: name.to_owned(), version }
    };
    names.split_whitespace().map(resolve).collect()
}

fn xtask() -> Command {
    let program = std::env::var_os("GLAKE_XTASK")
        .expect("GLAKE_XTASK: run these tests by `cargo xtask test --stage lab`");
    Command::new(program)
}

/// What a boot left behind.
pub struct Outcome {
    folder: PathBuf,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Outcome {
    /// A reading of the probes.
    pub fn sample(&self, name: &str) -> Result<Sample, Failed> {
        self.json(name)
    }

    /// A JSON file that the job wrote.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failed> {
        let text = self.text(&format!("{name}.json"))?;
        serde_json::from_str(&text).map_err(|e| format!("{name}.json: {e}").into())
    }

    /// What a load says that it did: the steps of ioload.
    pub fn load(&self, name: &str) -> Result<Load, Failed> {
        Ok(Load(self.json(name)?))
    }

    /// Any file of the job's /out.
    pub fn text(&self, name: &str) -> Result<String, Failed> {
        let path = self.folder.join(name);
        fs::read_to_string(&path).map_err(|e| format!("the guest left no {name}: {e}").into())
    }

    /// The words of names.txt.
    pub fn names(&self) -> Result<Vec<String>, Failed> {
        Ok(self.text("names.txt")?.split_whitespace().map(str::to_owned).collect())
    }
}

/// What ioload printed.
pub struct Load(Value);

impl Load {
    fn steps(&self) -> impl Iterator<Item = &Value> {
        self.0["steps"].as_array().into_iter().flatten()
    }

    /// A sum over the steps of one operation: `completed`, `failed`, `bytes`, `sum_ns`.
    pub fn sum(&self, operation: &str, what: &str) -> u64 {
        self.steps().filter(|s| s["operation"] == operation).filter_map(|s| s[what].as_u64()).sum()
    }

    /// Its process.
    pub fn pid(&self) -> u64 {
        self.0["pid"].as_u64().unwrap_or(0)
    }

    /// The id of the cgroup that it ran in.
    pub fn cgroup(&self) -> u64 {
        self.0["cgroup"]["id"].as_u64().unwrap_or(0)
    }
}

/// A guest that is booted when the first of its tests needs it.
#[derive(Clone)]
pub struct Guest {
    kernel: Kernel,
    arguments: Vec<String>,
    /// In tests/lab.
    script: &'static str,
    outcome: Arc<OnceLock<Result<Outcome, String>>>,
}

impl Guest {
    /// `arguments` are those of `cargo xtask vm`.
    pub fn new(kernel: &Kernel, script: &'static str, arguments: &[&str]) -> Guest {
        let arguments = arguments.iter().map(|&a| a.to_owned()).collect();
        Guest { kernel: kernel.clone(), arguments, script, outcome: Arc::default() }
    }

    /// A test on what the guest left behind.
    pub fn test(
        &self,
        title: &str,
        check: impl FnOnce(&Outcome) -> Result<(), Failed> + Send + 'static,
    ) -> Trial {
        let guest = self.clone();
        Trial::test(format!("Linux {}: {title}", self.kernel.version), move || {
            let outcome = guest.outcome.get_or_init(|| guest.boot());
            check(outcome.as_ref().map_err(|e| Failed::from(e.clone()))?)
        })
    }

    fn boot(&self) -> Result<Outcome, String> {
        let unique = format!("glake-lab-{}-{}-{}", std::process::id(), self.kernel.name, self.script);
        let folder = std::env::temp_dir().join(unique);
        let outcome = Outcome { folder: folder.clone() };
        let mut command = xtask();
        command
            .args(["vm", "--bare", "--kernel", &self.kernel.name, "--timeout", "300"])
            .arg("--out")
            .arg(&folder);
        command.args(&self.arguments);
        let glake = std::env::var("GLAKE_BIN").map_err(|_| "GLAKE_BIN is not set")?;
        for (from, to) in [
            (glake.as_str(), "bin/glake"),
            (env!("CARGO_BIN_EXE_ioload"), "bin/ioload"),
            (env!("CARGO_BIN_EXE_sampler"), "bin/sampler"),
        ] {
            command.arg("--file").arg(format!("{from}:{to}"));
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab").join(self.script);
        command.arg("--file").arg(format!("{}:files/job.sh", script.display()));
        let out = command.args(["--", "sh", "/files/job.sh"]).output().map_err(|e| format!("xtask: {e}"))?;
        if out.status.success() {
            return Ok(outcome);
        }
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Err(format!("{} {}: {}{}", self.script, out.status, said(&out.stdout), said(&out.stderr)))
    }
}
