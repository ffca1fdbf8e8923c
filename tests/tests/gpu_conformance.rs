//! The host GPU and, where there is one, the real GPU keep the rules of the boundary, and so does the heap on them.

use std::sync::Arc;

use glake::gpu::{Costs, Device, cuda::Cuda};
use glake::standin::gpu::{HostGpu, Settings};
use glake_tests::conformance::{broken, device, heap};

fn host(lag_ns: u64) -> Arc<dyn Device> {
    let settings = Settings { capacity: 1 << 30, costs: Costs::H200, lag_ns, ..Settings::default() };
    Arc::new(HostGpu::new(settings).unwrap())
}

#[test]
fn the_host_gpu_keeps_every_rule_of_a_gpu() {
    for lag_ns in [0, 5_000_000] {
        let gpu = host(lag_ns);
        assert_eq!(broken(&device::rules(), &*gpu), Vec::<String>::new(), "lag {lag_ns} ns");
    }
}

#[test]
fn the_heap_keeps_every_rule_on_the_host_gpu() {
    for lag_ns in [0, 5_000_000, 300_000_000] {
        assert_eq!(broken(&heap::rules(), &host(lag_ns)), Vec::<String>::new(), "lag {lag_ns} ns");
    }
}

#[test]
fn the_real_gpu_keeps_every_rule() {
    let gpu: Arc<dyn Device> = match Cuda::open(0) {
        Ok(gpu) => Arc::new(gpu),
        Err(e) => {
            println!("skipped: {}", e.chain());
            return;
        }
    };
    assert_eq!(broken(&device::rules(), &*gpu), Vec::<String>::new());
    assert_eq!(broken(&heap::rules(), &gpu), Vec::<String>::new());
}
