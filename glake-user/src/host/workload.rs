//! Which workload a cgroup belongs to: a pod, a Slurm job, a systemd unit, a user.

use super::inventory::Container;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What kind of workload it is: the label `workload_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadKind {
    /// A Kubernetes pod's container.
    Pod,
    /// A Slurm job.
    Slurm,
    /// A systemd unit of the system manager.
    Systemd,
    /// A logged-in user's slice.
    User,
    /// Everything else, and every workload that is not named at the moment.
    Other,
}

impl WorkloadKind {
    /// The label's value.
    pub fn name(self) -> &'static str {
        match self {
            WorkloadKind::Pod => "pod",
            WorkloadKind::Slurm => "slurm",
            WorkloadKind::Systemd => "systemd",
            WorkloadKind::User => "user",
            WorkloadKind::Other => "other",
        }
    }
}

/// A workload as people name it: never a pid. A pod whose names could not be learnt keeps its uid as `workload`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// The kind.
    pub kind: WorkloadKind,
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// The container's name in the pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// The Slurm job id, the unit's name, `user-1000.slice`, or the pod's uid where its name is unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workload: Option<String>,
}

impl Workload {
    /// The workload of everything that has no name of its own.
    pub const OTHER: Workload =
        Workload { kind: WorkloadKind::Other, namespace: None, pod: None, container: None, workload: None };

    fn named(kind: WorkloadKind, name: impl Into<String>) -> Self {
        Workload { kind, workload: Some(name.into()), ..Workload::OTHER }
    }

    /// How a screen names it: `train/llama-0`, `slurm 4711`, `nginx.service`, `other`.
    pub fn title(&self) -> String {
        match (&self.namespace, &self.pod, &self.workload) {
            (Some(namespace), Some(pod), _) => format!("{namespace}/{pod}"),
            (_, _, Some(name)) if self.kind == WorkloadKind::Slurm => format!("slurm {name}"),
            (_, _, Some(name)) if self.kind == WorkloadKind::Pod => format!("pod {name}"),
            (_, _, Some(name)) => name.clone(),
            _ => self.kind.name().to_owned(),
        }
    }

    /// The labels of its series, in the documented order, unknown ones left out.
    pub fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![("workload_kind", self.kind.name().to_owned())];
        let fields = [
            ("namespace", &self.namespace),
            ("pod", &self.pod),
            ("container", &self.container),
            ("workload", &self.workload),
        ];
        labels.extend(fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        labels
    }

    /// The workload of a cgroup path. The most telling part of the path wins: a pod inside a Slurm job is a pod.
    pub fn of_cgroup(path: &str, containers: &BTreeMap<String, Container>) -> Workload {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        pod(&parts, containers)
            .or_else(|| slurm(&parts))
            .or_else(|| user(&parts))
            .or_else(|| unit(&parts))
            .unwrap_or(Workload::OTHER)
    }
}

/// Kubernetes, both cgroup drivers: `kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope` and
/// `kubepods/burstable/pod<uid>/<id>`. The id is 64 hex digits.
fn pod(parts: &[&str], containers: &BTreeMap<String, Container>) -> Option<Workload> {
    let start = parts.iter().position(|part| part.starts_with("kubepods"))?;
    let below = &parts[start..];
    if let Some(container) = below.iter().rev().find_map(|part| containers.get(container_id(part)?)) {
        return Some(Workload {
            kind: WorkloadKind::Pod,
            namespace: Some(container.namespace.clone()),
            pod: Some(container.pod.clone()),
            container: Some(container.container.clone()),
            workload: None,
        });
    }
    let uid = below.iter().rev().find_map(|part| pod_uid(part))?;
    Some(Workload::named(WorkloadKind::Pod, uid))
}

/// The container id in one part of a cgroup path.
pub fn container_id(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    // CRI-O nests a `container` folder or adds `crio-<id>`; containerd's cgroupfs driver uses the bare id.
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

fn pod_uid(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let at = name.rfind("pod").filter(|at| *at == 0 || name.as_bytes()[at - 1] == b'-')?;
    let uid = name[at + 3..].replace('_', "-");
    // A uid is 32 hex digits, with dashes for API pods and without for static ones.
    let plain = uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (plain && uid.bytes().filter(|b| *b != b'-').count() == 32).then_some(uid)
}

/// Slurm: `slurm/uid_1000/job_42/step_0` (cgroup v1), `system.slice/[<node>_]slurmstepd.scope/job_42/step_0/user`
/// (v2), and from 26.05 a job folder that carries the job's SLUID, `s` and 13 base-32 digits, in the job's place.
fn slurm(parts: &[&str]) -> Option<Workload> {
    let start = parts.iter().position(|part| {
        *part == "slurm"
            || part.starts_with("slurm_")
            || part.ends_with("slurmstepd.scope")
            || *part == "slurmstepd"
    })?;
    let job = parts[start + 1..].iter().find_map(|part| {
        let number =
            part.strip_prefix("job_").filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()));
        number.or_else(|| is_sluid(part).then_some(*part))
    })?;
    Some(Workload::named(WorkloadKind::Slurm, job))
}

fn is_sluid(part: &str) -> bool {
    part.len() == 14
        && part.starts_with('s')
        && part[1..].bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
}

fn user(parts: &[&str]) -> Option<Workload> {
    let slice = parts.iter().find(|part| {
        part.strip_prefix("user-")
            .and_then(|rest| rest.strip_suffix(".slice"))
            .is_some_and(|uid| !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_digit()))
    })?;
    Some(Workload::named(WorkloadKind::User, *slice))
}

/// The innermost unit that is a service or a scope; a bare slice names nobody.
fn unit(parts: &[&str]) -> Option<Workload> {
    let name = parts.iter().rev().find(|part| part.ends_with(".service") || part.ends_with(".scope"))?;
    Some(Workload::named(WorkloadKind::Systemd, *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn containers() -> BTreeMap<String, Container> {
        let container =
            Container { namespace: "serve".into(), pod: "chat-5d9".into(), container: "vllm".into() };
        [(ID.to_owned(), container)].into()
    }

    fn title(path: &str) -> (WorkloadKind, String) {
        let workload = Workload::of_cgroup(path, &containers());
        (workload.kind, workload.title())
    }

    #[test]
    fn a_container_is_named_after_its_pod_under_every_runtime() {
        let uid = "pod9a2e0000_1111_2222_3333_444455556666";
        for path in [
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{uid}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-{uid}.slice/crio-{ID}.scope/container"),
            format!("/kubepods/besteffort/pod9a2e0000-1111-2222-3333-444455556666/{ID}"),
            format!("/kubelet.slice/kubelet-kubepods.slice/kubepods-{uid}.slice/docker-{ID}.scope"),
        ] {
            assert_eq!(title(&path), (WorkloadKind::Pod, "serve/chat-5d9".into()), "{path}");
        }
    }

    #[test]
    fn a_pod_whose_name_cannot_be_learnt_keeps_its_uid() {
        let path = "/kubepods.slice/kubepods-pod9a2e0000_1111_2222_3333_444455556666.slice/cri-containerd-ffff.scope";
        assert_eq!(title(path), (WorkloadKind::Pod, "pod 9a2e0000-1111-2222-3333-444455556666".into()));
        let static_pod = "/kubepods/burstable/pod0123456789abcdef0123456789abcdef/x";
        assert_eq!(title(static_pod), (WorkloadKind::Pod, "pod 0123456789abcdef0123456789abcdef".into()));
    }

    #[test]
    fn a_slurm_job_is_found_in_the_old_and_the_new_spelling() {
        for (path, job) in [
            ("/slurm/uid_1000/job_42/step_0/task_0", "slurm 42"),
            ("/slurm_gpu-17/uid_1000/job_42/step_batch", "slurm 42"),
            ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "slurm 42"),
            ("/system.slice/gpu-17_slurmstepd.scope/job_42/step_extern", "slurm 42"),
            ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user", "slurm s5K1KKYAYG5D00"),
        ] {
            assert_eq!(title(path), (WorkloadKind::Slurm, job.into()), "{path}");
        }
        assert_eq!(
            title("/system.slice/slurmstepd.scope/system").0,
            WorkloadKind::Systemd,
            "the step daemon itself is no job"
        );
    }

    #[test]
    fn units_and_users_keep_their_names_and_the_root_has_none() {
        assert_eq!(title("/system.slice/nginx.service"), (WorkloadKind::Systemd, "nginx.service".into()));
        assert_eq!(
            title("/system.slice/a.service/init.scope/x"),
            (WorkloadKind::Systemd, "init.scope".into())
        );
        assert_eq!(
            title("/user.slice/user-1000.slice/session-2.scope"),
            (WorkloadKind::User, "user-1000.slice".into())
        );
        for path in ["/", "", "/system.slice", "/foo/bar"] {
            assert_eq!(title(path), (WorkloadKind::Other, "other".into()), "{path}");
        }
    }

    #[test]
    fn labels_never_carry_what_is_unknown() {
        let pod = Workload::of_cgroup(&format!("/kubepods/podx/{ID}"), &containers());
        let names: Vec<_> = pod.labels().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["workload_kind", "namespace", "pod", "container"]);
        assert_eq!(Workload::OTHER.labels(), [("workload_kind", "other".to_owned())]);
    }

    proptest::proptest! {
        #[test]
        fn any_path_has_a_workload(path: String) { let _ = Workload::of_cgroup(&path, &containers()); }

        #[test]
        fn any_path_of_known_parts_has_a_workload(
            parts in proptest::collection::vec(proptest::sample::select(vec![
                "kubepods", "kubepods.slice", "pod", "kubepods-pod.slice", "slurm", "job_", "job_1", "slurmstepd.scope",
                "user-.slice", "user-1.slice", "x.service", ".scope", "\u{e9}pod-", "s5K1KKYAYG5D00"
            ]), 0..6)
        ) {
            let _ = Workload::of_cgroup(&parts.join("/"), &containers());
        }
    }
}
