//! `libglake_cuda.so` under programs of C, over a driver of real memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glake_tests::binary;

/// The programs, and the stand-in driver under the name a program looks for.
struct Built {
    folder: tempfile::TempDir,
}

fn compile(folder: &Path, name: &str, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload/program.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(folder.join(name))
        .arg(source)
        .args(flags)
        .args(["-ldl", "-lpthread"]);
    let out = cc.output().expect("cc runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(binary::library("libcuda.so"), folder.path().join("libcuda.so.1")).unwrap();
        compile(folder.path(), "program", &[]);
        let search = format!("-L{}", folder.path().display());
        compile(folder.path(), "linked", &["-DLINKED", &search, "-l:libcuda.so.1"]);
        Built { folder }
    })
}

fn preload() -> PathBuf {
    binary::library("libglake_cuda.so")
}

struct Answer {
    values: BTreeMap<String, String>,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn number(&self, name: &str) -> i64 {
        let text =
            self.values.get(name).unwrap_or_else(|| panic!("no {name} in {}{}", self.stdout, self.stderr));
        text.parse().unwrap()
    }
}

/// Runs the program; `preloads` by colons, `env` on top.
fn run_with(preloads: &str, way: &str, scene: &str, env: &[(&str, &str)]) -> Answer {
    let folder = built().folder.path();
    let program = folder.join(if way == "linked" { "linked" } else { "program" });
    let mut command = Command::new("timeout");
    command.arg("60").arg("env").arg(format!("LD_PRELOAD={preloads}")).arg(program).args([way, scene]);
    command
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("GLAKE_MODE")
        .env("GLAKE_LOG", "warn")
        .envs(env.iter().copied());
    let out = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{way} {scene}: {:?}\n{stdout}{stderr}", out.status);
    let values =
        stdout.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    Answer { values, stdout, stderr }
}

fn run(way: &str, scene: &str) -> Answer {
    run_with(&preload().display().to_string(), way, scene, &[("GLAKE_MODE", "on")])
}

#[test]
fn blocks_come_from_glake_whichever_way_the_program_finds_the_driver() {
    for way in ["address", "symbols", "linked"] {
        let answer = run(way, "churn");
        assert_eq!(answer.number("bad"), 0, "{way}: contents");
        assert_eq!(answer.number("allocs"), 0, "{way}: the driver's allocator was asked");
        assert!(answer.number("creates") > 0, "{way}: no memory was made");
        assert_eq!(answer.number("synchronizes"), 24, "{way}: one wait for each free");
        assert!(answer.stdout.lines().all(|l| l.contains('=')), "{}", answer.stdout);
    }
}

#[test]
fn the_program_runs_the_same_without_the_library_and_with_glake_off() {
    let path = preload().display().to_string();
    let off: &[(&str, &str)] = &[("GLAKE_MODE", "on"), ("GLAKE_DISABLE", "1")];
    for (preloads, env) in [("", &off[..1]), (path.as_str(), off), (path.as_str(), &[("GLAKE_MODE", "off")])]
    {
        let answer = run_with(preloads, "address", "churn", env);
        assert_eq!((answer.number("bad"), answer.number("allocs")), (0, 24), "{preloads} {env:?}");
    }
}

#[test]
fn four_threads_allocate_at_once() {
    let answer = run("address", "threads");
    assert_eq!(answer.stdout.matches("bad=0").count(), 4, "{}", answer.stdout);
    assert_eq!(answer.number("allocs"), 0);
}

#[test]
fn small_blocks_and_contexts_of_the_program_s_own_stay_the_driver_s() {
    let small = run("address", "small");
    assert_eq!((small.number("allocs"), small.number("frees"), small.number("free_code")), (1, 1, 0));
    let own = run("address", "own-context");
    assert_eq!((own.number("bad"), own.number("allocs")), (0, 24));
}

#[test]
fn a_block_of_many_handles_is_named_as_one_range() {
    let answer = run("address", "range");
    assert_eq!((answer.number("start"), answer.number("attribute")), (1, 1));
    assert_eq!(answer.number("size"), 100 << 20);
}

#[test]
fn a_full_device_answers_as_the_driver_does_and_works_again_after_frees() {
    let answer = run("address", "full");
    // 1 GiB of memory in blocks of 100 MiB; the driver was asked for the one that did not fit.
    assert_eq!((answer.number("blocks"), answer.number("alloc_code"), answer.number("again")), (10, 2, 1));
}

#[test]
fn while_a_stream_is_captured_the_driver_decides_and_frees_wait_for_its_end() {
    let answer = run("address", "capture");
    assert_eq!((answer.number("capture_alloc"), answer.number("capture_free")), (900, 0));
    assert_eq!((answer.number("end"), answer.number("after")), (0, 1));
    // The memory of the block that was freed meanwhile serves the next one; it was waited for once.
    let first = answer.number("first_creates");
    assert!(first > 0, "the first block has memory of GLake's");
    assert_eq!((answer.number("creates"), answer.number("synchronizes")), (first, 1));
}

#[test]
fn a_forked_child_is_left_to_the_driver() {
    let answer = run("address", "fork");
    assert_eq!((answer.number("child"), answer.number("allocs"), answer.number("free_code")), (0, 1, 0));
}

#[test]
fn wrong_arguments_get_the_driver_s_answer() {
    let answer = run("address", "wrong");
    assert_eq!((answer.number("free_code"), answer.number("null_code")), (1, 1));
}

#[test]
fn a_gpu_that_cannot_map_memory_is_left_to_the_driver_with_one_line_of_why() {
    let env = [("GLAKE_MODE", "on"), ("GLAKE_STANDIN_NO_VMM", "1")];
    let answer = run_with(&preload().display().to_string(), "address", "churn", &env);
    assert_eq!((answer.number("bad"), answer.number("allocs")), (0, 24));
    assert_eq!(answer.stderr.lines().filter(|l| l.starts_with("glake")).count(), 1, "{}", answer.stderr);
}

#[test]
fn a_second_copy_of_the_library_stands_back() {
    let second = built().folder.path().join("libglake_cuda.so");
    std::fs::copy(preload(), &second).unwrap();
    let both = format!("{}:{}", preload().display(), second.display());
    let answer = run_with(&both, "address", "churn", &[("GLAKE_MODE", "on")]);
    assert_eq!((answer.number("bad"), answer.number("allocs")), (0, 0));
}

#[test]
fn a_program_without_cuda_sees_and_hears_nothing_of_it() {
    let answer = run("address", "nothing");
    assert_eq!((answer.number("symbol"), answer.stderr.as_str()), (0, ""));
    let preloads = format!("LD_PRELOAD={}", preload().display());
    let out = Command::new("env")
        .args([preloads.as_str(), "GLAKE_MODE=on", "sh", "-c", "echo a | cat"])
        .output()
        .unwrap();
    assert_eq!((out.stdout.as_slice(), out.stderr.as_slice()), (&b"a\n"[..], &b""[..]));
}
