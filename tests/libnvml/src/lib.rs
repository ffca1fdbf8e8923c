//! NVML's C functions over a scene: a JSON file that `GLAKE_STANDIN_NVML` names and that is read anew at every call, so that a
//! test can take a GPU away, let a call hang or bring the driver back while the program runs.
//!
//! `nvmlInit_v2` opens `/dev/nvidiactl` where there is one, as the real library does. With `GLAKE_STANDIN_NVML_CALLS` every call
//! adds a line to that file: a test sees who was asked, and how many threads ask at once.

mod calls;
mod scene;
