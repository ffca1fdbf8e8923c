//! Who uses how much memory of each GPU, asked once: for `glake who --nvml`.

use super::reader::why_not;
use crate::error::{Error, Kind, Result};
use crate::pci;
use crate::sys::nvml::{Answer, Library};
use std::ffi::OsString;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The memory of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// As sysfs spells it.
    pub pci: String,
    /// All of it.
    pub total: u64,
    /// Used, without what the driver keeps for itself.
    pub used: u64,
    /// By process, as NVML names them; `None`: it does not say how much.
    pub processes: Vec<(u32, Option<u64>)>,
}

impl Held {
    /// Used bytes that no process has. `None`: of some process it is not known.
    pub fn without_process(&self) -> Option<u64> {
        let known: Option<u64> = self.processes.iter().map(|(_, bytes)| *bytes).sum();
        Some(self.used.saturating_sub(known?))
    }
}

/// Asks all GPUs, within `timeout`. What does not come by then is left behind, asking.
///
/// # Errors
/// `TimedOut` when it does not answer, `Unsupported` with its reason when it refuses.
pub fn held(library: &str, timeout: Duration) -> Result<Vec<Held>> {
    let (to, from) = channel();
    let path: OsString = library.into();
    let thread = std::thread::Builder::new().name("glake-nvml".into());
    thread.spawn(move || to.send(ask(&path))).map_err(|e| Error::os("starting a thread to ask NVML", e))?;
    match from.recv_timeout(timeout) {
        Ok(Ok(held)) => Ok(held),
        Ok(Err(why)) => {
            let (reason, remedy) = why_not(&why, library);
            Err(Error::new(Kind::Unsupported, reason).remedy(remedy))
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let seconds = timeout.as_secs();
            Err(Error::new(
                Kind::TimedOut,
                format!("NVML has not answered for {seconds} s: the driver or a GPU hangs"),
            ))
        }
    }
}

fn ask(path: &OsString) -> Answer<Vec<Held>> {
    let library = Library::open(path)?;
    let mut all = Vec::new();
    for index in 0..library.count()?.min(super::ask::MOST_GPUS) {
        // A GPU that does not answer is one of which nothing is known.
        let Ok(gpu) = library.gpu(index) else { continue };
        let one = || -> Answer<Option<Held>> {
            let Some(pci) = pci::sysfs(&gpu.pci()?) else { return Ok(None) };
            let memory = gpu.memory()?;
            Ok(Some(Held { pci, total: memory.total, used: memory.used, processes: gpu.processes()? }))
        };
        all.extend(one().ok().flatten());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_process_is_the_rest_and_unknown_where_a_part_is() {
        let held = |processes| Held { pci: String::new(), total: 80, used: 40, processes };
        assert_eq!(held(vec![(5, Some(10)), (6, Some(20))]).without_process(), Some(10));
        assert_eq!(held(vec![]).without_process(), Some(40));
        assert_eq!(held(vec![(5, Some(10)), (6, None)]).without_process(), None);
        assert_eq!(held(vec![(5, Some(50))]).without_process(), Some(0), "two readings at two moments");
    }
}
