//! A few kernels for tests and benchmarks, as PTX text that the driver compiles. They touch only the device memory
//! that their arguments name.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys as cu;

use super::cuda_gpu::CudaGpu;
use crate::error::Result;

/// The kernels. Sizes are counts of elements; all walk their range with the whole grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// `(ns)`: keeps its threads busy for that long.
    Spin,
    /// `(to, words, value)`: word `i` becomes `value + i`.
    Number,
    /// `(to, words, value)`: adds to each word.
    Add,
    /// `(words at, words, value, counter at)`: counts the words that are not `value + i`.
    Check,
    /// `(to, from, vectors)`: copies 16-byte vectors.
    Copy,
    /// `(from, vectors, seed, out)`: 16 random 16-byte loads for each thread.
    Gather,
}

const NAMES: [&CStr; 6] =
    [c"glake_spin", c"glake_number", c"glake_add", c"glake_check", c"glake_copy", c"glake_gather"];

/// Each kernel's index and stride are made the same way: %d0 = first element, %d1 = elements in the grid.
macro_rules! index {
    () => {
        "
  .reg .u32 %r<12>; .reg .u64 %d<12>; .reg .pred %p<3>;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d0, %r0, %r1; cvt.u64.u32 %d2, %r2; add.u64 %d0, %d0, %d2; mul.wide.u32 %d1, %r3, %r1;
"
    };
}

const PTX: &str = concat!(
    "
.version 7.0
.target sm_70
.address_size 64

.visible .entry glake_spin(.param .u64 ns) {
  .reg .u64 %t<4>; .reg .pred %q;
  ld.param.u64 %t0, [ns];
  mov.u64 %t1, %globaltimer;
SPIN:
  mov.u64 %t2, %globaltimer;
  sub.u64 %t3, %t2, %t1;
  setp.lt.u64 %q, %t3, %t0;
  @%q bra SPIN;
  ret;
}

.visible .entry glake_number(.param .u64 to, .param .u64 n, .param .u64 value) {",
    index!(),
    "
  ld.param.u64 %d3, [to]; ld.param.u64 %d4, [n]; ld.param.u64 %d5, [value];
NUMBER:
  setp.ge.u64 %p0, %d0, %d4; @%p0 bra NUMBER_END;
  add.u64 %d6, %d0, %d5; cvt.u32.u64 %r4, %d6;
  shl.b64 %d7, %d0, 2; add.u64 %d7, %d7, %d3; st.global.u32 [%d7], %r4;
  add.u64 %d0, %d0, %d1; bra NUMBER;
NUMBER_END:
  ret;
}

.visible .entry glake_add(.param .u64 to, .param .u64 n, .param .u64 value) {",
    index!(),
    "
  ld.param.u64 %d3, [to]; ld.param.u64 %d4, [n]; ld.param.u64 %d5, [value]; cvt.u32.u64 %r5, %d5;
ADD:
  setp.ge.u64 %p0, %d0, %d4; @%p0 bra ADD_END;
  shl.b64 %d7, %d0, 2; add.u64 %d7, %d7, %d3; ld.global.u32 %r4, [%d7];
  add.u32 %r4, %r4, %r5; st.global.u32 [%d7], %r4;
  add.u64 %d0, %d0, %d1; bra ADD;
ADD_END:
  ret;
}

.visible .entry glake_check(.param .u64 at, .param .u64 n, .param .u64 value, .param .u64 counter) {",
    index!(),
    "
  ld.param.u64 %d3, [at]; ld.param.u64 %d4, [n]; ld.param.u64 %d5, [value]; ld.param.u64 %d8, [counter];
CHECK:
  setp.ge.u64 %p0, %d0, %d4; @%p0 bra CHECK_END;
  add.u64 %d6, %d0, %d5; cvt.u32.u64 %r5, %d6;
  shl.b64 %d7, %d0, 2; add.u64 %d7, %d7, %d3; ld.global.u32 %r4, [%d7];
  setp.ne.u32 %p1, %r4, %r5;
  @%p1 red.global.add.u32 [%d8], 1;
  add.u64 %d0, %d0, %d1; bra CHECK;
CHECK_END:
  ret;
}

.visible .entry glake_copy(.param .u64 to, .param .u64 from, .param .u64 n) {",
    index!(),
    "
  ld.param.u64 %d3, [to]; ld.param.u64 %d4, [from]; ld.param.u64 %d5, [n];
COPY:
  setp.ge.u64 %p0, %d0, %d5; @%p0 bra COPY_END;
  shl.b64 %d6, %d0, 4; add.u64 %d7, %d4, %d6; add.u64 %d8, %d3, %d6;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d7];
  st.global.v4.u32 [%d8], {%r4, %r5, %r6, %r7};
  add.u64 %d0, %d0, %d1; bra COPY;
COPY_END:
  ret;
}

.visible .entry glake_gather(.param .u64 from, .param .u64 n, .param .u64 seed, .param .u64 out) {",
    index!(),
    "
  ld.param.u64 %d3, [from]; ld.param.u64 %d4, [n]; ld.param.u64 %d5, [seed]; ld.param.u64 %d9, [out];
  mul.lo.u64 %d6, %d0, 0x9E3779B97F4A7C15; add.u64 %d6, %d6, %d5;
  mov.u32 %r8, 0; mov.u32 %r9, 0;
GATHER:
  shr.u64 %d7, %d6, 33; xor.b64 %d6, %d6, %d7; mul.lo.u64 %d6, %d6, 0xFF51AFD7ED558CCD;
  shr.u64 %d7, %d6, 33; xor.b64 %d6, %d6, %d7;
  mul.hi.u64 %d8, %d6, %d4; shl.b64 %d8, %d8, 4; add.u64 %d8, %d8, %d3;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d8];
  xor.b32 %r8, %r8, %r4; xor.b32 %r8, %r8, %r7;
  add.u32 %r9, %r9, 1; setp.lt.u32 %p0, %r9, 16; @%p0 bra GATHER;
  setp.eq.u32 %p1, %r8, 123456789;
  @%p1 st.global.u32 [%d9], %r8;
  ret;
}
",
    "\0"
);

/// The kernels, compiled for one GPU.
pub struct Kernels {
    functions: [u64; NAMES.len()],
}

impl Kernels {
    /// Has the driver compile them.
    pub fn load(gpu: &CudaGpu) -> Result<Kernels> {
        let mut module: cu::CUmodule = ptr::null_mut();
        gpu.inside(
            || "compiling the kernels".to_owned(),
            |f| {
                // SAFETY: the text ends with a zero; `module` is a valid place.
                unsafe { (f.module_load)(&raw mut module, PTX.as_ptr().cast()) }
            },
        )?;
        let mut functions = [0; NAMES.len()];
        for (slot, name) in functions.iter_mut().zip(NAMES) {
            let mut function: cu::CUfunction = ptr::null_mut();
            gpu.inside(
                || format!("finding kernel {}", name.to_string_lossy()),
                |f| {
                    // SAFETY: the module was loaded above and is never unloaded; the name ends with a zero.
                    unsafe { (f.module_function)(&raw mut function, module, name.as_ptr()) }
                },
            )?;
            *slot = function as u64;
        }
        Ok(Kernels { functions })
    }

    /// Starts a kernel on `blocks` blocks of `threads` threads. `arguments` are those of the kernel's doc; the rest is
    /// ignored.
    pub fn launch(
        &self,
        gpu: &CudaGpu,
        kernel: Kernel,
        stream: u64,
        grid: (u32, u32),
        mut arguments: [u64; 4],
    ) -> Result<()> {
        let mut pointers: [*mut c_void; 4] = arguments.each_mut().map(|a| ptr::from_mut(a).cast());
        let function = self.functions[kernel as usize] as cu::CUfunction;
        let (blocks, threads) = grid;
        // SAFETY: every kernel takes at most four 64-bit arguments, and the driver copies them before it returns. A wrong
        // device address is a GPU fault, not an access to this process's memory.
        gpu.inside(
            || format!("launching {kernel:?}"),
            |f| unsafe {
                (f.launch)(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream as cu::CUstream,
                    pointers.as_mut_ptr(),
                    ptr::null_mut(),
                )
            },
        )
    }
}
