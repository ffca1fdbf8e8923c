//! Steps of a program that repeat, and how often a heap turns to the driver in each.

use std::sync::Arc;

use glake::error::Result;
use glake::gpu::{Costs, Device, Stream};
use glake::standin::gpu::{HostGpu, Settings};
use glake::stitch::{Heap, Options};

const MIB: u64 = 1 << 20;

/// Foreground driver calls of each of `rounds` equal rounds, under the default options.
pub fn calls_by_round(rounds: usize, round: impl Fn(&Heap) -> Result<()>) -> Result<Vec<u64>> {
    let settings =
        Settings { capacity: 4 << 30, costs: Costs::H200, lag_ns: 5_000_000, ..Settings::default() };
    let gpu = Arc::new(HostGpu::new(settings)?);
    let heap = Heap::new(Arc::clone(&gpu) as Arc<dyn Device>, Options::default())?;
    let one = |_| {
        let before = heap.stats().foreground_total().calls;
        round(&heap)?;
        gpu.advance(50_000_000);
        heap.reclaim(u64::MAX)?;
        Ok(heap.stats().foreground_total().calls - before)
    };
    (0..rounds).map(one).collect()
}

/// A step of training: activations that stay until the way back, temporaries, a large loss, gradients.
pub fn training(heap: &Heap) -> Result<()> {
    let get = |size| heap.allocate(size, Stream(0)).map(|block| block.ptr);
    let put = |ptr| heap.free(ptr, Stream(0));
    let mut kept = Vec::new();
    // Forward: each layer keeps two activations and drops two temporaries.
    for layer in 0..12 {
        let temporaries = (get(90 * MIB)?, get(3000 + layer)?);
        kept.push(get(33 * MIB)?);
        kept.push(get(7 * MIB + 512 * layer)?);
        put(temporaries.0)?;
        put(temporaries.1)?;
    }
    let loss = (get(500 * MIB)?, get(250 * MIB)?);
    put(loss.0)?;
    // Backward: in the other order, with a gradient of the same size for each.
    for activation in kept.into_iter().rev() {
        let gradient = get(40 * MIB)?;
        put(activation)?;
        put(gradient)?;
    }
    put(loss.1)
}
