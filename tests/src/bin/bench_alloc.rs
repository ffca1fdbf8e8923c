//! tuning
#![allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::print_stdout)]
use glake::gpu::{Costs, Device};
use glake::standin::gpu::{HostGpu, Settings};
use glake::stitch::trace::*;
use glake::stitch::*;
use std::sync::Arc;

fn load(path: &str) -> Vec<TraceEvent> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| {
        let f: Vec<&str> = l.split(',').collect();
        let at_ns = f[0].parse::<u64>().unwrap() * 1000;
        let id = f[2].parse().unwrap();
        let what = if f[1] == "a" { What::Alloc(Alloc { id, size: f[3].parse().unwrap(), stream: 0, pool: Pool::Default }) } else { What::Free { id } };
        TraceEvent { at_ns, what }
    }).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let handle: u64 = args[1].parse::<u64>().unwrap() << 20;
    let eps: f64 = args[2].parse().unwrap();
    let lags: Vec<u64> = args[3].split(',').map(|l| l.parse().unwrap()).collect();
    let scales: Vec<f64> = args[4].split(',').map(|l| l.parse().unwrap()).collect();
    for path in &args[5..] {
        let base = load(path);
        for scale in &scales {
            let events = scaled(&base, *scale);
            for lag in &lags {
                let gpu = Arc::new(HostGpu::new(Settings { lag_ns: lag * 1_000_000, costs: Costs::H200, ..Settings::default() }).unwrap());
                let options = Options { handle_bytes: handle, remap_slack_ratio: eps, ..Options::default() };
                let heap = Heap::new(Arc::clone(&gpu) as Arc<dyn Device>, options).unwrap();
                let clock = Arc::clone(&gpu);
                let mut target = HeapTarget::new(&heap, Box::new(move |ns| clock.advance_to(ns)));
                let t = std::time::Instant::now();
                let out = play(&events, &mut target, &mut |_, _| {}).unwrap();
                let s = heap.stats();
                println!("{} x{scale} lag {lag} handle {} eps {eps}: ratio {:.4} ({:.3}/{:.3}) warm {:.1} ms late {:.4}% stall {:.2} late {:.2} ms remapped {:.1} GiB calls {} zombie {} waits {} failed {:?} {:.0} ms fg {} bg {}", path.rsplit('/').next().unwrap(), handle >> 20,
                    out.allocated_to_reserved_ratio().unwrap(), out.peak_requested as f64 / 1073741824.0, out.peak_reserved as f64 / 1073741824.0,
                    out.warm_up_foreground_ns as f64 / 1e6, out.late_driver_share().unwrap() * 100.0, out.largest_stall_ns as f64 / 1e6, out.largest_late_stall_ns as f64 / 1e6, s.remapped_bytes as f64 / 1073741824.0, out.end.driver_calls, s.zombie_bytes >> 20, s.waits, out.failed, t.elapsed().as_millis(), s.foreground_total().ns/1000000, s.background_total().ns/1000000);
            }
        }
    }
}
