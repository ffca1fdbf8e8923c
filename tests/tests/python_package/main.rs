//! The Python package as a user installs it: built, put into a fresh environment, and used there without torch and without a GPU.

mod runs;
mod segment;
mod weights;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A fresh environment with the wheel in it; `None` where this machine cannot make one, with the reason said.
fn python() -> Option<&'static Path> {
    static HOME: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match HOME.get_or_init(install) {
        Ok(program) => Some(program),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn done(command: &mut Command) -> Result<Output, String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() { Ok(out) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

fn install() -> Result<PathBuf, String> {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python");
    let _ = std::fs::remove_dir_all(&home);
    done(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let xtask = std::env::var_os("GLAKE_XTASK")
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug/xtask").into());
    // A wheel that does not build is a failure of ours, but one that cannot fetch its builder is the machine's.
    let built = Command::new(xtask).args(["wheel", "--dev"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let built = built.map_err(|e| format!("xtask: {e}"))?;
    let text = String::from_utf8_lossy(&built.stderr).into_owned();
    if !built.status.success() {
        assert!(text.contains("python3") || text.contains("pip"), "the wheel does not build: {text}");
        return Err(format!("no maturin here: {text}"));
    }
    let wheel = String::from_utf8_lossy(&built.stdout).trim().to_owned();
    let program = home.join("bin/python");
    done(Command::new(&program).args(["-m", "pip", "install", "--quiet", "--no-index"]).arg(wheel))?;
    Ok(program)
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs a script; `env` on top of a clean one, the host GPU in place of CUDA's.
fn run(python: &Path, script: &str, env: &[(&str, &str)]) -> Ran {
    command(Command::new("timeout").arg("120").arg(python).args(["-c", script]), env)
}

fn command(command: &mut Command, env: &[(&str, &str)]) -> Ran {
    let clean = ["GLAKE_MODE", "GLAKE_DISABLE", "GLAKE_BIN", "GLAKE_CACHE", "PYTHONPATH"];
    for name in clean {
        command.env_remove(name);
    }
    let out = command.env("GLAKE_DEVICE", "host").envs(env.iter().copied()).output().unwrap();
    Ran {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Runs a script that must succeed; its output.
fn says(script: &str, env: &[(&str, &str)]) -> Option<Ran> {
    let ran = run(python()?, script, env);
    assert_eq!(ran.code, 0, "{script}\n{}{}", ran.stdout, ran.stderr);
    Some(ran)
}

#[test]
fn without_torch_init_says_why_and_the_program_goes_on() {
    let script = "import glake; s = glake.init(); print(glake.__version__, s.mode, s.how)";
    let Some(ran) = says(script, &[]) else { return };
    assert_eq!(ran.stdout.trim(), format!("{} off none", env!("CARGO_PKG_VERSION")));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("off") && ran.stderr.contains("torch"), "{}", ran.stderr);
}

#[test]
fn only_the_first_rank_speaks() {
    let script = "import glake; glake.init(); glake.init()";
    let Some(ran) = says(script, &[("RANK", "3"), ("WORLD_SIZE", "8")]) else { return };
    assert_eq!(ran.stderr, "");
}

#[test]
fn options_are_read_and_set_by_name_alias_and_variable() {
    let script = "
import glake
print(glake.get_option('allocator.max_bytes'), glake.get_option('memory_pool.size'))
glake.set_option('gmlake.enabled', False)
print(glake.get_option('allocator.enabled'))
glake.set_option('multi_path.num_channels', 8)
print(len(glake.options()), [o['variable'] for o in glake.options() if o['name'] == 'checks'])
for name, value in (('alocator.enabled', True), ('checks', 'maybe'), ('multi_path.num_channels', 0)):
    try:
        glake.set_option(name, value)
    except ValueError as error:
        print(error)
";
    let Some(ran) = says(script, &[("GLAKE_ALLOCATOR_MAX_BYTES", "1GiB")]) else { return };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..3], ["1073741824 1073741824", "false", "15 ['GLAKE_CHECKS']"], "{}", ran.stdout);
    assert!(lines[3].contains("did you mean allocator.enabled?"), "{}", lines[3]);
    assert!(lines[4].contains("true or false"), "{}", lines[4]);
    assert!(lines[5].contains("from 1 to 64"), "{}", lines[5]);
    assert!(ran.stderr.contains("multi_path.num_channels is kept"), "{}", ran.stderr);
}

#[test]
fn a_wrong_mode_is_an_error_and_a_wrong_variable_leaves_the_defaults() {
    let Some(python) = python() else { return };
    let ran = run(python, "import glake; glake.init()", &[("GLAKE_MODE", "yes")]);
    assert!(ran.code == 1 && ran.stderr.contains("off, observe or on"), "{}", ran.stderr);
    let env = [("GLAKE_CHECKS", "maybe")];
    let ran = run(python, "import glake; print(glake.get_option('checks'))", &env);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "false"));
    assert!(ran.stderr.contains("GLAKE_CHECKS") && ran.stderr.contains("true or false"), "{}", ran.stderr);
}

#[test]
fn the_heap_serves_counts_and_maps() {
    let script = "
import ctypes, glake
from glake import _core
a, size = _core.allocate(100 << 20)
ctypes.memset(a, 7, 100 << 20)
b, _ = _core.allocate(300)
s = glake.get_memory_stats(0)
print(s['requested']['current'], s['blocks']['current'], s['reserved']['current'] >= 100 << 20, s['fallbacks'])
print(sum(r['requested'] for r in glake.snapshot(0)['ranges']))
_core.free(a); _core.free(b)
print(glake.get_memory_stats()['allocated']['current'], 0.0 <= glake.get_fragmentation_ratio() <= 1.0)
print(glake.defragment(0) >= 0, _core.trim(0) > 0, glake.get_memory_stats(0)['reserved']['current'])
try:
    _core.free(a)
except RuntimeError as error:
    print(error)
";
    let Some(ran) = says(script, &[]) else { return };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let requested = (100 << 20) + 300;
    assert_eq!(lines[0], format!("{requested} 2 True 0"));
    assert_eq!(lines[1], requested.to_string());
    assert_eq!(lines[2..4], ["0 True", "True True 0"]);
    assert!(lines[4].contains("checks = true"), "{}", lines[4]);
}

/// Calls the table of `glake_api.h` as the adapter does.
const TABLE: &str = "
import ctypes, os
from glake import _core
words = ctypes.cast(_core.api_address(), ctypes.POINTER(ctypes.c_size_t))
u32 = ctypes.cast(_core.api_address(), ctypes.POINTER(ctypes.c_uint32))
u64, i32, ptr = ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p
names = ('last_error open allocate free record_stream owns find pin unpin begin_capture end_capture trim set_max_bytes on_pressure '
         'enable_peer stats reset_peaks reset_accumulated ranges export_block import_block close_import say_once reserved').split()
def f(name, result, *args):
    return ctypes.CFUNCTYPE(result, *args)(words[1 + names.index(name)])
def error():
    text = ctypes.create_string_buffer(512)
    f('last_error', ctypes.c_size_t, ptr, ctypes.c_size_t)(ctypes.cast(text, ptr), 512)
    return text.value.decode()
def allocate(size, stream=0):
    at, rounded = u64(), u64()
    status = f('allocate', i32, i32, u64, u64, ptr, ptr)(0, size, stream, ctypes.addressof(at), ctypes.addressof(rounded))
    return status, at.value, rounded.value
free = f('free', i32, i32, u64, u64)
";

#[test]
fn the_table_has_the_size_its_header_says_and_serves_from_any_thread() {
    let script = format!(
        "{TABLE}
print(u32[0], u32[1] == 8 + 8 * len(names))
print(f('open', i32, i32)(0))
import threading
bad = []
def work(n):
    for i in range(200):
        status, at, rounded = allocate((n + 1) * 100000 + i)
        if status or rounded % 512 or free(0, at, 0):
            bad.append(status)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(bad), f('reserved', u64, i32)(0) > 0, f('reserved', u64, i32)(7))
"
    );
    let Some(ran) = says(&script, &[]) else { return };
    assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), ["1 True", "0", "0 True 0"], "{}", ran.stderr);
}

#[test]
fn wrong_pointers_and_full_devices_are_statuses_with_a_text() {
    let script = format!(
        "{TABLE}
f('open', i32, i32)(0)
print(free(0, 0x1234, 0), 'did not hand out' in error())
print(f('set_max_bytes', i32, i32, u64)(0, 64 << 20), allocate(1 << 30)[0], error() != '')
print(allocate(32 << 20)[0], f('set_max_bytes', i32, i32, u64)(0, 2**64 - 1), allocate(1 << 30)[0])
print(free(-1, 0, 0), f('open', i32, i32)(1000), f('owns', i32, u64)(0))
"
    );
    let Some(ran) = says(&script, &[]) else { return };
    assert_eq!(
        ran.stdout.lines().collect::<Vec<_>>(),
        ["2 True", "0 1 True", "0 0 0", "2 2 0"],
        "{}",
        ran.stderr
    );
}

#[test]
fn a_block_goes_to_another_mapping_by_descriptors_and_reads_the_same() {
    let script = format!(
        "{TABLE}
f('open', i32, i32)(0)
_, at, _ = allocate(40 << 20)
ctypes.memset(at, 9, 40 << 20)
fds, sizes, count, offset, there = (i32 * 64)(), (u64 * 64)(), ctypes.c_uint32(), u64(), u64()
a = ctypes.addressof
export = f('export_block', i32, i32, u64, ptr, ptr, ctypes.c_uint32, ptr, ptr)
print(export(0, at + 512, a(fds), a(sizes), 64, a(count), a(offset)), count.value >= 1, offset.value)
print(f('import_block', i32, i32, ptr, ptr, ctypes.c_uint32, ptr)(0, a(fds), a(sizes), count, a(there)))
print(ctypes.string_at(there.value + (39 << 20), 4), f('close_import', i32, i32, u64)(0, there.value))
[os.close(fds[i]) for i in range(count.value)]
print(export(0, at, a(fds), a(sizes), 1, a(count), a(offset)) if count.value > 1 else 5, free(0, at, 0))
"
    );
    let Some(ran) = says(&script, &[]) else { return };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines, ["0 True 512", "0", r"b'\t\t\t\t' 0", "5 0"], "{}", ran.stderr);
}

#[test]
fn a_forked_child_is_told_to_use_its_own_allocator_and_both_end_well() {
    let script = format!(
        "{TABLE}
f('open', i32, i32)(0)
_, at, _ = allocate(1 << 20)
child = os.fork()
if child == 0:
    status = allocate(1 << 20)[0]
    os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), free(0, at, 0))
"
    );
    let Some(ran) = says(&script, &[]) else { return };
    assert_eq!(ran.stdout.trim(), "4 0");
}

#[test]
fn the_plain_interface_s_functions_serve_wait_for_other_streams_and_give_back() {
    let script = "
import ctypes, glake
from glake import _core
lib = ctypes.CDLL(_core.__file__)
size, at = ctypes.c_ssize_t, ctypes.c_void_p
lib.glake_malloc.restype, lib.glake_malloc.argtypes = at, (size, ctypes.c_int, at)
lib.glake_free.restype, lib.glake_free.argtypes = None, (at, size, ctypes.c_int, at)
lib.glake_record_stream.argtypes = (at, at)
block = lib.glake_malloc(100 << 20, 0, None)
lib.glake_record_stream(block, None)
lib.glake_free(block, 100 << 20, 0, None)
lib.glake_free(None, 0, 0, None)
held = glake.get_memory_stats(0)['reserved']['current']
lib.glake_empty_cache()
print(block > 0, held > 0, glake.get_memory_stats(0)['reserved']['current'], lib.glake_malloc(1 << 50, 0, None))
lib.glake_record_stream(0x1000, None)
";
    let Some(ran) = says(script, &[]) else { return };
    assert_eq!(ran.stdout.trim(), "True True 0 None", "{}", ran.stderr);
    assert!(ran.stderr.contains("0x1000 is in no heap of GLake"), "{}", ran.stderr);
}

#[test]
fn disabled_is_above_everything() {
    let script = format!("{TABLE}\nimport glake\nprint(glake.init().mode, f('open', i32, i32)(0))");
    let Some(ran) = says(&script, &[("GLAKE_DISABLE", "1"), ("GLAKE_MODE", "on")]) else { return };
    assert_eq!(ran.stdout.trim(), "off 4");
}

#[test]
fn the_package_brings_the_command_line() {
    let Some(python) = python() else { return };
    let glake = python.with_file_name("glake");
    let oom = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.33 GiB of which 1.00 GiB is free.";
    let ran = command(Command::new(&glake).args(["explain-oom", oom]), &[]);
    assert!(ran.code == 0 && ran.stdout.contains("free"), "{}{}", ran.stdout, ran.stderr);
    let ran = command(Command::new(&glake).arg("exec"), &[]);
    assert!(ran.code == 2 && ran.stderr.contains("glake exec -- python train.py"), "{}", ran.stderr);
    let ran = command(Command::new(&glake).args(["exec", "--", "/no/such/program"]), &[]);
    assert!(ran.code == 127 && ran.stderr.contains("/no/such/program"), "{}", ran.stderr);
}

/// A folder with a `torch` that is nothing but a name: enough to see when GLake is installed.
fn stand_in_torch(folder: &Path) {
    std::fs::write(folder.join("torch.py"), "__version__ = '0.0'\nprint('torch runs')\n").unwrap();
}

#[test]
fn exec_reaches_grandchildren_and_a_hidden_sitecustomize_still_runs() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    stand_in_torch(folder.path());
    std::fs::write(folder.path().join("sitecustomize.py"), "print('hidden runs')\n").unwrap();
    let child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import json; print(1); import torch; import glake; print(glake.state().mode)'])";
    let mut exec = Command::new(python.with_file_name("glake"));
    exec.args(["exec", "--"]).arg(python).args(["-c", child]);
    let ran = command(&mut exec, &[("PYTHONPATH", folder.path().to_str().unwrap())]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    // In `glake` itself, in its child and in the child's child.
    assert_eq!(lines.iter().filter(|l| **l == "hidden runs").count(), 3, "{}", ran.stdout);
    assert!(lines.contains(&"torch runs"), "{}", ran.stdout);
    // This torch is none, so GLake is off and says so; what matters is that it was asked, after torch had run.
    assert_eq!(lines.last(), Some(&"off"), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn without_a_mode_the_hook_is_not_there() {
    let script =
        "import sys; print([type(f).__name__ for f in sys.meta_path if 'Torch' in type(f).__name__])";
    let Some(ran) = says(script, &[]) else { return };
    assert_eq!(ran.stdout.trim(), "[]");
}
