//! The torch adapter against each declared version of torch: compiled with its headers, and run with its own allocator library below.
//!
//! The headers and the two small libraries come out of torch's wheels by ranges, a few MB each, once; no GPU and no CUDA is needed. What the
//! cases prove is in `tests/src/torch/adapter_test.cpp`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Declared version, the wheel that stands for it, and the CUDA runtime it links. `DECLARED` in `torch_adapter.py` names the same.
const TORCHES: [(&str, &str, u32); 4] =
    [("2.8", "2.8.0", 12), ("2.9", "2.9.1", 12), ("2.10", "2.10.0", 12), ("2.11", "2.11.0", 13)];
/// One CUDA's headers for all: the adapter uses nothing of the runtime that changed since.
const CUDA: &str = "13.0.96";

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn cache() -> PathBuf {
    let shared = std::env::var_os("GLAKE_CACHE").map(PathBuf::from);
    shared.unwrap_or_else(|| checkout().join("target/xtask")).join("torch")
}

/// Runs a program; its output if it fails.
fn run(program: &str, arguments: &[String]) -> Result<String, String> {
    let out = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match out.status.success() {
        true => Ok(text(&out.stdout)),
        false => Err(format!("{program}: {}\n{}{}", out.status, text(&out.stdout), text(&out.stderr))),
    }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// The unpacked part of a wheel; an error is a reason to skip, since it means that no package index can be reached.
fn unpacked(requirement: &str, name: &str, parts: &[&str]) -> Result<PathBuf, String> {
    let folder = cache().join(name);
    if !folder.is_dir() {
        std::fs::create_dir_all(cache()).map_err(|e| e.to_string())?;
        let script = checkout().join("tests/src/torch/headers.py").display().to_string();
        let target = folder.display().to_string();
        let mut arguments = vec![script, requirement.to_owned(), target];
        arguments.extend(words(parts));
        run("python3", &arguments)?;
    }
    Ok(folder)
}

struct Torch {
    minor: String,
    root: PathBuf,
    cuda: PathBuf,
    runtime: u32,
}

impl Torch {
    fn get(declared: &str, wheel: &str, runtime: u32) -> Result<Torch, String> {
        let parts = [
            "torch/include/c10/",
            "torch/include/torch/headeronly/",
            "torch/lib/libc10.so",
            "torch/lib/libc10_cuda.so",
        ];
        let root = unpacked(&format!("torch=={wheel}"), &format!("torch-{wheel}"), &parts)?;
        let cuda = format!("nvidia-cuda-runtime=={CUDA}");
        let cuda = unpacked(&cuda, &format!("cuda-{CUDA}"), &["nvidia/cu13/include/"])?;
        Ok(Torch { minor: declared.to_owned(), root, cuda, runtime })
    }

    /// The number the sources know it by: major * 100 + minor.
    fn number(&self) -> u32 {
        let (major, minor) = self.minor.split_once('.').expect("a version");
        major.parse::<u32>().expect("a number") * 100 + minor.parse::<u32>().expect("a number")
    }

    /// Flags of the compiler, as `torch_build.py` gives them.
    fn flags(&self) -> Vec<String> {
        let adapter = adapter();
        vec![
            "-std=c++17".to_owned(),
            format!("-DGLAKE_TORCH={}", self.number()),
            format!("-isystem{}", self.root.join("torch/include").display()),
            format!("-isystem{}", self.cuda.join("nvidia/cu13/include").display()),
            format!("-idirafter{}", adapter.join("cuda").display()),
        ]
    }

    /// A CUDA runtime of host memory under the name this torch asks for.
    fn runtime(&self, folder: &Path) -> Result<PathBuf, String> {
        let runtime = folder.join(format!("libcudart.so.{}", self.runtime));
        let versions = folder.join("versions");
        let node = format!("libcudart.so.{} {{ global: *; }};\n", self.runtime);
        std::fs::write(&versions, node).map_err(|e| e.to_string())?;
        let mut make = words(&["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]);
        make.push(format!("-Wl,-soname,libcudart.so.{}", self.runtime));
        make.push(format!("-Wl,--version-script={}", versions.display()));
        make.extend(["-o".to_owned(), runtime.display().to_string(), source("cudart.c")]);
        run("gcc", &make).map(|_| runtime)
    }

    /// Builds the cases with the adapter, this torch's allocator and a CUDA runtime of host memory: a program, or a library.
    fn build(&self, folder: &Path, kind: &[&str]) -> Result<PathBuf, String> {
        let runtime = self.runtime(folder)?;
        let program = folder.join("adapter_test");
        let libraries = self.root.join("torch/lib");
        let mut make = self.flags();
        make.extend(words(&["-O1", "-Wall", "-Wextra", "-Werror"]));
        make.extend(words(kind));
        make.extend([source("adapter_test.cpp"), source("plain_core.cpp")]);
        make.push(adapter().join("adapter.cpp").display().to_string());
        make.extend(["-o".to_owned(), program.display().to_string()]);
        make.extend([format!("-L{}", libraries.display()), "-lc10".to_owned(), "-lc10_cuda".to_owned()]);
        make.extend([runtime.display().to_string(), "-ldl".to_owned()]);
        make.push(format!("-Wl,-rpath,{}:{}", libraries.display(), folder.display()));
        // libc10 links libraries of the wheel that these cases do not reach.
        make.push("-Wl,--allow-shlib-undefined".to_owned());
        run("g++", &make)?;
        Ok(program)
    }
}

fn source(name: &str) -> String {
    checkout().join("tests/src/torch").join(name).display().to_string()
}

fn adapter() -> PathBuf {
    checkout().join("glake-user/python/python/glake/adapter")
}

/// Why these tests cannot run here, if they cannot.
fn obstacle() -> Option<String> {
    for (program, flag) in [("g++", "--version"), ("gcc", "--version"), ("python3", "--version")] {
        if run(program, &words(&[flag])).is_err() {
            return Some(format!("needs {program}"));
        }
    }
    match run("python3", &words(&["-m", "pip", "--version"])) {
        Ok(_) => None,
        Err(_) => Some("needs pip, which finds torch's wheels".to_owned()),
    }
}

/// Every case in a process of its own: the adapter is installed once per process.
fn run_cases(program: &Path) -> (usize, Vec<String>) {
    let program = program.display().to_string();
    let names = run(&program, &[]).expect("the list of cases");
    let failed: Vec<String> = names
        .lines()
        .filter_map(|name| run(&program, &words(&[name])).err().map(|e| format!("{name}: {e}")))
        .collect();
    (names.lines().count(), failed)
}

#[test]
fn the_adapter_keeps_torchs_rules_over_each_declared_torch() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    for (declared, wheel, runtime) in TORCHES {
        let torch = match Torch::get(declared, wheel, runtime) {
            Ok(torch) => torch,
            Err(reason) => {
                eprintln!("skipped: torch {wheel} cannot be fetched: {reason}");
                return;
            }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let program = torch.build(folder.path(), &[]).unwrap_or_else(|e| panic!("torch {wheel}: {e}"));
        let (cases, failed) = run_cases(&program);
        assert!(cases >= 20, "torch {wheel}: only {cases} cases");
        assert!(failed.is_empty(), "torch {wheel}:\n{}", failed.join("\n"));
    }
}

/// The package as built by xtask, unpacked; an error is a reason to skip.
fn package(folder: &Path) -> Result<(), String> {
    let xtask = std::env::var_os("GLAKE_XTASK").map(PathBuf::from);
    let xtask = xtask.unwrap_or_else(|| checkout().join("target/debug/xtask"));
    let wheel = run(&xtask.display().to_string(), &words(&["wheel", "--dev"]))?;
    let unpack = ["-m", "zipfile", "-e", wheel.trim(), &folder.display().to_string()];
    run("python3", &words(&unpack)).map(|_| ())
}

#[test]
fn glakes_core_serves_under_torchs_rules() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (declared, wheel, runtime) = TORCHES[TORCHES.len() - 1];
    let made = Torch::get(declared, wheel, runtime).and_then(|torch| Ok((package(folder.path())?, torch)));
    let ((), torch) = match made {
        Ok(made) => made,
        Err(reason) => {
            eprintln!("skipped: torch {wheel} or the package's builder cannot be fetched: {reason}");
            return;
        }
    };
    let library = torch.build(folder.path(), &["-shared", "-fPIC"]).unwrap_or_else(|e| panic!("{e}"));
    let script = format!(
        "import ctypes\nfrom glake import _core\nctypes.CDLL('{}').adapter_test_over(ctypes.c_void_p(_core.api_address()))",
        library.display()
    );
    let out = Command::new("timeout")
        .args(["120", "python3", "-c", &script])
        .env("GLAKE_DEVICE", "host")
        .env("PYTHONPATH", folder.path())
        .output()
        .expect("python3");
    assert!(out.status.success(), "{}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
}

/// A home for Python processes that find the package and a torch of a few lines; see `fake_torch.py`.
struct Home {
    folder: tempfile::TempDir,
    runtime: PathBuf,
    cuda: PathBuf,
}

impl Home {
    fn make() -> Result<Home, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (declared, wheel, runtime) = TORCHES[TORCHES.len() - 1];
        let torch = Torch::get(declared, wheel, runtime)?;
        package(folder.path())?;
        let home = folder.path().join("torch");
        std::fs::create_dir(&home).map_err(|e| e.to_string())?;
        std::fs::copy(source("fake_torch.py"), home.join("__init__.py")).map_err(|e| e.to_string())?;
        for part in ["include", "lib"] {
            let from =
                std::fs::canonicalize(torch.root.join("torch").join(part)).map_err(|e| e.to_string())?;
            std::os::unix::fs::symlink(from, home.join(part)).map_err(|e| e.to_string())?;
        }
        let lib = folder.path().join("lib");
        std::fs::create_dir(&lib).map_err(|e| e.to_string())?;
        let runtime = torch.runtime(&lib)?;
        let include =
            std::fs::canonicalize(torch.cuda.join("nvidia/cu13/include")).map_err(|e| e.to_string())?;
        std::os::unix::fs::symlink(include, folder.path().join("include")).map_err(|e| e.to_string())?;
        let cuda = folder.path().to_owned();
        Ok(Home { folder, runtime, cuda })
    }

    /// A process that installs the adapter and prints the outcome.
    fn python(&self, cache: &str, compiler: &str) -> Command {
        let mut python = Command::new("timeout");
        let script =
            "import torch\nfrom glake import torch_adapter as t\no = t.install()\nprint(o.how, o.why)";
        python.args(["300", "python3", "-c", script]);
        python.env("PYTHONPATH", self.folder.path()).env("GLAKE_DEVICE", "host").env("GLAKE_MODE", "on");
        python.env("TEST_TORCH", TORCHES[TORCHES.len() - 1].1).env("TEST_CUDART", &self.runtime);
        python.env("CUDA_HOME", &self.cuda).env("CXX", compiler);
        python.env("GLAKE_TORCH_CACHE", self.folder.path().join(cache));
        python
    }

    fn says(&self, cache: &str, compiler: &str) -> String {
        let out = self.python(cache, compiler).output().expect("python3");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

#[test]
fn ranks_that_start_together_build_the_adapter_once_and_a_bad_compiler_leaves_torch_alone() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let home = match Home::make() {
        Ok(home) => home,
        Err(reason) => {
            eprintln!("skipped: torch or the package's builder cannot be fetched: {reason}");
            return;
        }
    };
    let (log, compiler) = (home.folder.path().join("log"), home.folder.path().join("compiler"));
    let wrapper = format!("#!/bin/sh\necho x >> {}\nexec g++ \"$@\"\n", log.display());
    std::fs::write(&compiler, wrapper).expect("a compiler");
    run("chmod", &words(&["755", &compiler.display().to_string()])).expect("chmod");
    let compiler = compiler.display().to_string();
    let ranks: Vec<_> = (0..3)
        .map(|_| {
            home.python("cache", &compiler).stdout(std::process::Stdio::piped()).spawn().expect("python3")
        })
        .collect();
    for rank in ranks {
        let out = rank.wait_with_output().expect("its end");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "adapter torch 2.11.0\n");
    }
    assert_eq!(std::fs::read_to_string(&log).expect("the log"), "x\n", "built more than once");
    assert_eq!(home.says("cache", &compiler), "adapter torch 2.11.0\n");
    assert_eq!(std::fs::read_to_string(&log).expect("the log"), "x\n", "built again");

    let said = home.says("other", "/bin/false");
    assert!(said.starts_with("off the adapter does not compile here, see "), "{said}");
    std::fs::create_dir(home.folder.path().join("open")).expect("a folder");
    run("chmod", &words(&["777", &home.folder.path().join("open").display().to_string()])).expect("chmod");
    let said = home.says("open", &compiler);
    assert!(said.starts_with("off no folder for the built adapter"), "{said}");
}

#[test]
fn the_package_declares_the_versions_that_are_tested() {
    let script = checkout().join("glake-user/python/python/glake/torch_adapter.py");
    let text = std::fs::read_to_string(script).expect("torch_adapter.py");
    let declared = text.lines().find(|line| line.starts_with("DECLARED = ")).expect("DECLARED");
    let tested: Vec<String> = TORCHES.iter().map(|(v, ..)| format!("({})", v.replace('.', ", "))).collect();
    assert_eq!(declared, format!("DECLARED = ({})", tested.join(", ")));
}
