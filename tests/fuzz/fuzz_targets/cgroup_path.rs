//! Any cgroup path has a workload, whose labels are never empty.
#![no_main]

use glake::host::workload::Workload;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fuzz_target!(|path: &str| {
    let workload = Workload::of_cgroup(path, &BTreeMap::new());
    assert!(workload.labels().iter().all(|(_, value)| !value.is_empty()), "{path:?}");
});
