//! `docs/metrics.md`, made from the table: the reference cannot differ from the program.

use super::table::{MAX_SERIES, TABLE};

/// The whole page.
pub fn markdown() -> String {
    let mut page = format!(
        "# Metrics\n\nMade from the program's own table by `glake metrics-reference`; a test compares the two.\n\n\
         Names, types, units and labels follow semantic versioning: a change is a breaking change. An unknown label is \
         left out, never guessed; an unknown value has no series, never a zero. A host has at most {MAX_SERIES} \
         series; each family's largest number is in the last column, buckets counted one by one. When a family is full, \
         its device labels read `other`, and `glake_series_refused_total` counts it.\n\n\
         A workload is named by `workload_kind` (pod, slurm, systemd, user, other) with `namespace`, `pod`, `container`, \
         or `workload` (job id, unit, user slice). At most 31 have a name at a time; names change at most once a minute \
         and end after 10 idle minutes; everything else is `workload_kind=\"other\"`, so that a sum over workloads is \
         always everything. A process id is never a label.\n\n\
         | name | type | labels | meaning | no data means | most series |\n|---|---|---|---|---|---|\n"
    );
    for family in TABLE {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        page.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} |\n",
            family.name,
            family.kind.name(),
            labels.join(", "),
            family.help.replace('|', "\\|"),
            family.no_data,
            family.max
        ));
    }
    page
}
