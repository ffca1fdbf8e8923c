//! The selected row as a PromQL query, to go on in Prometheus with what the screen showed.

use super::table::About;

/// Queries for a row, most telling first.
pub(super) fn queries(about: &About) -> Vec<String> {
    let p99 = |metric: &str, labels: &[(&str, String)]| {
        let by = ", operation";
        format!("histogram_quantile(0.99, sum by (le{by}) (rate({metric}_bucket{}[5m])))", braces(labels))
    };
    let rate = |metric: &str, labels: &[(&str, String)], by: &str| {
        format!("sum by ({by}) (rate({metric}{}[5m]))", braces(labels))
    };
    match about {
        About::Block(device) => {
            let labels = [("device", device.clone())];
            vec![
                p99("glake_block_device_duration_seconds", &labels),
                p99("glake_block_queue_duration_seconds", &labels),
                rate("glake_block_device_duration_seconds_count", &labels, "operation"),
            ]
        }
        About::Nvme(controller) => {
            let labels = [("controller", controller.clone())];
            vec![
                p99("glake_nvme_command_duration_seconds", &labels),
                rate("glake_nvme_command_duration_seconds_count", &labels, "operation"),
                rate("glake_nvme_command_errors_total", &labels, "status_type"),
            ]
        }
        About::Workload(labels) => vec![rate("glake_block_io_bytes_total", labels, "operation")],
        About::Allocator(labels) => vec![
            format!("glake_allocator_reserved_bytes{}", braces(labels)),
            format!("glake_allocator_allocated_bytes{}", braces(labels)),
            rate("glake_allocator_driver_calls_total", labels, "call"),
        ],
        About::Gpu(labels) => vec![
            format!("sum by (xid) (glake_gpu_xid_errors_total{})", braces(labels)),
            format!("max by (xid) (glake_gpu_xid_last_timestamp_seconds{})", braces(labels)),
        ],
        About::Finding(rule) => {
            vec![format!(
                "max by (instance, UUID) (glake_finding_active{})",
                braces(&[("rule", rule.clone())])
            )]
        }
        About::Probe(probe) => {
            vec![format!("min by (instance) (glake_probe_attached{})", braces(&[("probe", probe.clone())]))]
        }
    }
}

fn braces(labels: &[(&str, String)]) -> String {
    let one = |(name, value): &(&str, String)| {
        // Prometheus: a label value escapes backslash, quote and line feed.
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(one).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_becomes_queries_that_name_it() {
        assert_eq!(
            queries(&About::Nvme("nvme1".into()))[0],
            "histogram_quantile(0.99, sum by (le, operation) (rate(glake_nvme_command_duration_seconds_bucket\
             {controller=\"nvme1\"}[5m])))"
        );
        let labels = vec![("workload_kind", "systemd".to_owned()), ("workload", "a\"b\\c".to_owned())];
        assert_eq!(
            queries(&About::Workload(labels)),
            [
                r#"sum by (operation) (rate(glake_block_io_bytes_total{workload_kind="systemd",workload="a\"b\\c"}[5m]))"#
            ]
        );
    }
}
