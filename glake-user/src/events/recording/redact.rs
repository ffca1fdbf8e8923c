//! Takes names out of readings and events, the same name always by the same stand-in, so that a recording can be mailed.

use crate::events::event::{Event, What};
use crate::events::sample::{Owner, Sample};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Replaces names in order of their first appearance. One redactor serves a whole recording.
///
/// Taken out: the host's name, GPU UUIDs, command names, the names of units, users, pods, jobs and containers in cgroup
/// paths, and the free text of Xid reports (it holds a process name). A cgroup path keeps its shape, so that a unit
/// stays a unit and a pod a pod. Kept: device names, PCI addresses, process ids, numbers and the kernel's own words.
#[derive(Debug, Default)]
pub struct Redactor {
    known: HashMap<(&'static str, String), usize>,
    counts: HashMap<&'static str, usize>,
}

impl Redactor {
    /// Redacts a reading in place.
    pub fn sample(&mut self, sample: &mut Sample) {
        for owner in sample.owners.iter_mut().flatten() {
            if let Owner::Task { comm, .. } = &mut owner.owner {
                self.comm(comm);
            }
            self.path(&mut owner.cgroup_path);
        }
        if let Some(uvm) = &mut sample.uvm {
            uvm.gpus.iter_mut().for_each(|gpu| self.uuid(&mut gpu.uuid));
            for space in &mut uvm.spaces {
                self.uuid(&mut space.uuid);
                self.comm(&mut space.comm);
                self.path(&mut space.cgroup_path);
            }
        }
        for process in sample.heaps.iter_mut().flat_map(|h| &mut h.processes) {
            self.comm(&mut process.comm);
            self.path(&mut process.cgroup_path);
        }
        for gpu in sample.nvml.iter_mut().flat_map(|n| &mut n.gpus) {
            self.uuid(&mut gpu.uuid);
            for instance in gpu.mig.iter_mut().flat_map(|mig| &mut mig.instances) {
                self.uuid(&mut instance.uuid);
            }
        }
    }

    fn comm(&mut self, comm: &mut String) {
        if !comm.is_empty() {
            *comm = format!("comm-{}", self.number("comm", comm));
        }
    }

    fn path(&mut self, path: &mut Option<String>) {
        if let Some(path) = path {
            *path = path.split('/').map(|part| self.cgroup_part(part)).collect::<Vec<_>>().join("/");
        }
    }

    /// The same stand-in as in the host's facts.
    fn uuid(&mut self, uuid: &mut Option<String>) {
        if let Some(uuid) = uuid {
            let kind = if uuid.starts_with("MIG-") { "MIG" } else { "GPU" };
            *uuid = format!("{kind}-{}", self.number(kind, uuid));
        }
    }

    /// Redacts an event in place.
    pub fn event(&mut self, event: &mut Event) {
        if let What::Xid { message, .. } = &mut event.what {
            *message = "(redacted)".into();
        }
    }

    /// Redacts the host's facts in place: the JSON of `host::inventory::Inventory`.
    pub fn host(&mut self, host: &mut Value) {
        let Value::Object(host) = host else { return };
        host.insert("hostname".into(), "redacted".into());
        if let Some(Value::Array(gpus)) = host.get_mut("gpus") {
            for gpu in gpus.iter_mut().filter_map(Value::as_object_mut) {
                self.member(gpu, "uuid", "GPU");
            }
        }
        if let Some(Value::Object(containers)) = host.get_mut("containers") {
            let named = std::mem::take(containers);
            for (id, mut names) in named {
                if let Value::Object(names) = &mut names {
                    for key in ["namespace", "pod", "container"] {
                        self.member(names, key, key);
                    }
                }
                containers.insert(self.container_id(&id), names);
            }
        }
    }

    fn member(&mut self, object: &mut Map<String, Value>, key: &str, kind: &'static str) {
        if let Some(Value::String(name)) = object.get_mut(key) {
            *name = format!("{kind}-{}", self.number(kind, name));
        }
    }

    /// One part of a cgroup path, its shape kept: what marks a pod, a job, a unit or a user stays.
    fn cgroup_part(&mut self, part: &str) -> String {
        const COMMON: [&str; 6] = ["", "system.slice", "user.slice", "machine.slice", "init.scope", "slurm"];
        let (stem, suffix) = match part.rsplit_once('.') {
            Some((stem, suffix @ ("slice" | "scope" | "service"))) => (stem, format!(".{suffix}")),
            _ => (part, String::new()),
        };
        if COMMON.contains(&part) || stem.starts_with("kubepods") && !stem.contains("-pod") {
            return part.to_owned();
        }
        if let Some(at) = stem.find("pod").filter(|at| *at == 0 || stem.starts_with("kubepods")) {
            let at = stem.rfind("-pod").map_or(at, |dash| dash + 1);
            return format!("{}pod{:032x}{suffix}", &stem[..at], self.number("pod uid", &stem[at + 3..]));
        }
        let (runtime, id) = stem.rsplit_once('-').map_or(("", stem), |(r, id)| (r, id));
        if id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
            let dash = if runtime.is_empty() { "" } else { "-" };
            return format!("{runtime}{dash}{}{suffix}", self.container_id(id));
        }
        for prefix in ["user-", "job_", "uid_", "step_"] {
            if let Some(name) = stem.strip_prefix(prefix) {
                return format!("{prefix}{}{suffix}", self.number(prefix, name));
            }
        }
        if stem.ends_with("slurmstepd") {
            return format!("slurmstepd{suffix}");
        }
        format!("cgroup-{}{suffix}", self.number("cgroup", stem))
    }

    fn container_id(&mut self, id: &str) -> String {
        format!("{:064x}", self.number("container id", id))
    }

    fn number(&mut self, kind: &'static str, name: &str) -> usize {
        let count = self.counts.entry(kind).or_default();
        *self.known.entry((kind, name.to_owned())).or_insert_with(|| {
            *count += 1;
            *count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cgroup_path_keeps_its_shape_and_loses_its_names() {
        let mut r = Redactor::default();
        let id = "5c".repeat(32);
        let uid = "0f".repeat(16);
        let cases = [
            ("/system.slice/secret.service".to_owned(), "/system.slice/cgroup-1.service".to_owned()),
            (
                "/user.slice/user-1007.slice/secret.scope".into(),
                "/user.slice/user-1.slice/cgroup-1.scope".into(),
            ),
            (
                format!("/kubepods.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{id}.scope"),
                format!(
                    "/kubepods.slice/kubepods-burstable-pod{:032x}.slice/cri-containerd-{:064x}.scope",
                    1, 1
                ),
            ),
            (format!("/kubepods/pod{uid}/{id}"), format!("/kubepods/pod{:032x}/{:064x}", 1, 1)),
            (
                "/system.slice/node7_slurmstepd.scope/job_42/step_0".into(),
                "/system.slice/slurmstepd.scope/job_1/step_1".into(),
            ),
            ("/".into(), "/".into()),
        ];
        for (path, expect) in cases {
            let got: Vec<_> = path.split('/').map(|p| r.cgroup_part(p)).collect();
            assert_eq!(got.join("/"), expect, "{path}");
        }
    }

    #[test]
    fn a_pods_names_are_replaced_and_its_container_is_still_found() {
        let id = "5c".repeat(32);
        let mut host = json!({
            "hostname": "secret-node", "kernel": "6.12",
            "gpus": [{"pci": "0000:19:00.0", "uuid": "GPU-secret"}],
            "containers": {id.clone(): {"namespace": "secret", "pod": "secret-0", "container": "secret"}},
        });
        let mut r = Redactor::default();
        r.host(&mut host);
        assert!(!host.to_string().contains("secret"), "{host}");
        assert!(host.to_string().contains("6.12"));
        let part = r.cgroup_part(&format!("cri-containerd-{id}.scope"));
        let key = part.strip_prefix("cri-containerd-").and_then(|p| p.strip_suffix(".scope")).unwrap();
        assert!(host["containers"].get(key).is_some(), "{key} in {host}");
    }

    proptest::proptest! {
        #[test]
        fn any_cgroup_part_is_an_answer(part: String) { let _ = Redactor::default().cgroup_part(&part); }
    }
}
