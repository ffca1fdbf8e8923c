//! GPU health as NVML tells it. What it does not tell has no series, and neither has an old value.

use crate::{
    events::{
        nvml::{Errors, GpuHealth, Health, Instance},
        sample::Sample,
    },
    host::pci,
    telemetry::metrics::{
        ledger::{Labels, Ledger},
        table::{
            Family, GPU_ECC, GPU_ECC_AGGREGATE, GPU_INSTANCE_FREE, GPU_INSTANCE_INFO, GPU_INSTANCE_SIZE,
            GPU_INSTANCE_USED, GPU_MEMORY_FREE, GPU_MEMORY_SIZE, GPU_MEMORY_USED, GPU_MIG, GPU_REMAP_FAILURE,
            GPU_REMAP_PENDING, GPU_REMAPPED, GPU_RETIRED, GPU_UTILIZATION, NVML_FAILED, NVML_READ, NVML_UP,
        },
    },
};

pub(super) fn book(ledger: &mut Ledger, grown: &Sample) {
    let Some(nvml) = &grown.nvml else { return };
    ledger.tell(&NVML_FAILED, Labels::new(), nvml.failed_reads);
    if nvml.health != Health::Starting {
        let up = nvml.health == Health::Answering;
        ledger.gauge(&NVML_UP, Labels::new(), f64::from(u8::from(up)));
    }
    if let Some(at) = nvml.read_at {
        ledger.gauge(&NVML_READ, Labels::new(), at.realtime_ns as f64 / 1e9);
    }
    for gpu in &nvml.gpus {
        one(ledger, gpu);
    }
}

/// Empty where the GPU could not be named: its values then have no series.
fn labels(gpu: &GpuHealth) -> Option<Labels> {
    let bus = pci::dcgm(gpu.pci.as_deref()?)?;
    Some(gpu.uuid.iter().map(|uuid| ("UUID", uuid.clone())).chain([("pci_bus_id", bus)]).collect())
}

fn one(ledger: &mut Ledger, gpu: &GpuHealth) {
    let Some(labels) = labels(gpu) else { return };
    let with =
        |name, value: &str| -> Labels { labels.iter().cloned().chain([(name, value.to_owned())]).collect() };
    for (family, errors) in [(&GPU_ECC, gpu.ecc_volatile), (&GPU_ECC_AGGREGATE, gpu.ecc_aggregate)] {
        ecc(ledger, family, &labels, errors);
    }
    if let Some(rows) = gpu.remapped_rows {
        ledger.tell(&GPU_REMAPPED, with("cause", "correctable"), rows.correctable.into());
        ledger.tell(&GPU_REMAPPED, with("cause", "uncorrectable"), rows.uncorrectable.into());
        ledger.gauge(&GPU_REMAP_PENDING, labels.clone(), f64::from(u8::from(rows.pending)));
        ledger.gauge(&GPU_REMAP_FAILURE, labels.clone(), f64::from(u8::from(rows.failure)));
    }
    let retired = &gpu.retired_pages;
    for (cause, pages) in
        [("multiple_single_bit", retired.multiple_single_bit), ("double_bit", retired.double_bit)]
    {
        if let Some(pages) = pages {
            ledger.tell(&GPU_RETIRED, with("cause", cause), pages.into());
        }
    }
    if let Some(memory) = gpu.memory {
        ledger.gauge(&GPU_MEMORY_SIZE, labels.clone(), memory.total_bytes as f64);
        ledger.gauge(&GPU_MEMORY_USED, labels.clone(), memory.used_bytes as f64);
        ledger.gauge(&GPU_MEMORY_FREE, labels.clone(), memory.free_bytes as f64);
    }
    if let Some(percent) = gpu.busy_percent {
        ledger.gauge(&GPU_UTILIZATION, labels.clone(), f64::from(percent) / 100.0);
    }
    if let Some(mig) = &gpu.mig {
        ledger.gauge(&GPU_MIG, labels.clone(), f64::from(u8::from(mig.enabled)));
        mig.instances.iter().for_each(|found| instance(ledger, &labels, found));
    }
}

fn ecc(ledger: &mut Ledger, family: &'static Family, labels: &Labels, errors: Errors) {
    for (severity, count) in [("corrected", errors.corrected), ("uncorrected", errors.uncorrected)] {
        let Some(count) = count else { continue };
        let series = labels.iter().cloned().chain([("severity", severity.to_owned())]).collect();
        ledger.tell(family, series, count);
    }
}

/// Under the labels of its GPU, as DCGM has it. Memory belongs to the GPU instance: its compute instances share it.
fn instance(ledger: &mut Ledger, labels: &Labels, found: &Instance) {
    let Some(id) = found.gpu_instance else { return };
    let mut series = labels.clone();
    series.push(("GPU_I_ID", id.to_string()));
    if let Some(memory) = found.memory {
        ledger.gauge(&GPU_INSTANCE_SIZE, series.clone(), memory.total_bytes as f64);
        ledger.gauge(&GPU_INSTANCE_USED, series.clone(), memory.used_bytes as f64);
        ledger.gauge(&GPU_INSTANCE_FREE, series.clone(), memory.free_bytes as f64);
    }
    series.extend(found.profile.iter().map(|p| ("GPU_I_PROFILE", p.clone())));
    series.extend(found.compute_instance.map(|id| ("compute_instance", id.to_string())));
    series.extend(found.uuid.iter().map(|uuid| ("instance_uuid", uuid.clone())));
    ledger.gauge(&GPU_INSTANCE_INFO, series, 1.0);
}
