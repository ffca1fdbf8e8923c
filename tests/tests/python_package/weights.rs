//! `glake.load_safetensors` over a torch of a few lines whose GPU memory is the host GPU's: every byte arrives where its tensor is.

use std::path::Path;

use super::{python, run, says};

/// What the loader asks of torch. A tensor is an address and a count of bytes; on the GPU the memory is GLake's own.
const TORCH: &str = r"
import ctypes
from glake import _core
__version__ = '2.11-standin'
class dtype:
    def __init__(self, name, size): self.name, self.size = name, size
uint8, float32, float16 = dtype('uint8', 1), dtype('float32', 4), dtype('float16', 2)
float8_e4m3fn = dtype('float8_e4m3fn', 1)
class device:
    def __init__(self, kind, index=None):
        if isinstance(kind, device): kind, index = kind.type, kind.index
        name, _, number = str(kind).partition(':')
        self.type, self.index = name, int(number) if number else index
class Tensor:
    def __init__(self, address, size, dtype, shape=None, keeps=None):
        self.address, self.size, self.dtype, self.shape, self.keeps = address, size, dtype, shape, keeps
    def data_ptr(self): return self.address
    device = device('cuda', 0)
    def is_contiguous(self): return True
    def numel(self): return self.size // self.dtype.size
    def element_size(self): return self.dtype.size
    def __getitem__(self, s): return Tensor(self.address + s.start, s.stop - s.start, self.dtype, keeps=self.keeps)
    def view(self, dtype): return Tensor(self.address, self.size, dtype, keeps=self.keeps)
    def reshape(self, shape):
        count = 1
        for n in shape: count *= n
        assert count * self.dtype.size == self.size, (shape, self.size)
        return Tensor(self.address, self.size, self.dtype, tuple(shape), self.keeps)
    def bytes(self): return ctypes.string_at(self.address, self.size)
def empty(shape, dtype, device=None):
    if isinstance(shape, tuple): return Tensor(0, 0, dtype, shape)
    return Tensor(_core.allocate(shape)[0], shape, dtype, (shape,))
def frombuffer(memory, dtype):
    return Tensor(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory), dtype, keeps=memory)
class _Stream: cuda_stream = 0
class cuda:
    current_device = staticmethod(lambda: 0)
    current_stream = staticmethod(lambda where: _Stream)
";

/// Writes a file of two tensors of 3 MiB and two small ones, loads it both ways and compares.
const LOADS: &str = r"
import json, struct, random, glake
def write(path, tensors):
    header, data, at = {}, b'', 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + len(raw)]}
        at += len(raw); data += raw
    text = json.dumps(header).encode()
    open(path, 'wb').write(struct.pack('<Q', len(text)) + text + data)
rng = random.Random(1)
wanted = {
    'big': ('F32', [768, 1024], rng.randbytes(3 << 20)), 'norm': ('F16', [5], rng.randbytes(10)),
    'none': ('F16', [0, 7], b''), 'one': ('F32', [], rng.randbytes(4)), 'eight': ('F8_E4M3', [3], rng.randbytes(3)),
    'big2': ('F16', [1536, 1024], rng.randbytes(3 << 20)),
}
write('model.safetensors', wanted)
for device in ('cuda', 'cuda:0', 'cpu'):
    tensors = glake.load_safetensors('model.safetensors', device=device)
    assert set(tensors) == set(wanted)
    for name, (dtype, shape, raw) in wanted.items():
        t = tensors[name]
        assert t.shape == tuple(shape), (name, t.shape)
        if raw:
            assert t.bytes() == raw, (device, name)
            if device != 'cpu': assert t.data_ptr() % 512 == 0, name
print('loaded')
write('odd.safetensors', {'t': ('F6_E2M3', [4], b'abc')})
for path in ('odd.safetensors', 'nothing.safetensors'):
    try: glake.load_safetensors(path)
    except (ValueError, OSError) as e: print(type(e).__name__, e)
tensors = glake.load_safetensors('model.safetensors', device='cuda')
glake.save_safetensors(tensors, 'saved.safetensors', {'format': 'pt'})
again = glake.load_safetensors('saved.safetensors', device='cpu')
assert set(again) == set(wanted)
for name, (dtype, shape, raw) in wanted.items():
    assert again[name].shape == tuple(shape) and (not raw or again[name].bytes() == raw), name
assert json.loads(open('saved.safetensors', 'rb').read()[8:].split(b'}}')[0] + b'}}')['__metadata__'] == {'format': 'pt'}
tensors['tied'] = tensors['big']
try: glake.save_safetensors(tensors, 'saved.safetensors')
except ValueError as e: print('shared', e)
try: glake.save_safetensors({'one': again['one'], 'big': again['big']}, 'nowhere/saved.safetensors')
except OSError as e: print('nowhere', e)
open('cut.safetensors', 'wb').write(open('model.safetensors', 'rb').read()[:-5])
try: glake.load_safetensors('cut.safetensors')
except ValueError as e: print('cut', e)
";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("torch")).unwrap();
    std::fs::write(folder.path().join("torch/__init__.py"), TORCH).unwrap();
    folder
}

fn inside(folder: &Path, script: &str) -> String {
    format!("import os, sys; os.chdir({folder:?}); sys.path.insert(0, '.')\n{script}")
}

#[test]
fn tensors_arrive_byte_for_byte_on_the_gpu_and_on_the_cpu() {
    let folder = folder();
    let Some(ran) = says(&inside(folder.path(), LOADS), &[]) else { return };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "loaded");
    assert!(
        lines[1].contains("ValueError") && lines[1].contains("'t'") && lines[1].contains("F6_E2M3"),
        "{}",
        lines[1]
    );
    assert!(lines[2].contains("OSError") && lines[2].contains("nothing.safetensors"), "{}", lines[2]);
    assert!(lines[3].contains("'big' and 'tied' share memory"), "{}", lines[3]);
    assert!(lines[4].contains("nowhere/"), "{}", lines[4]);
    assert!(lines[5].contains("bytes are missing") && lines[5].contains("cut short"), "{}", lines[5]);
}

#[test]
fn without_torch_the_loader_says_what_is_missing() {
    let Some(python) = python() else { return };
    let ran = run(python, "import glake; glake.load_safetensors('x.safetensors')", &[]);
    assert!(ran.code != 0 && ran.stderr.contains("No module named 'torch'"), "{}", ran.stderr);
}
