//! A real Prometheus scrapes the agent and answers PromQL; promtool checks format, rules and their tests.

use glake_tests::agent::{Agent, Setup, can_watch, get, wait};
use serde_json::Value;
use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

/// `GLAKE_PROMETHEUS` is the folder with Debian's programs, as `cargo xtask test` sets it; else the PATH.
fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GLAKE_PROMETHEUS").map(PathBuf::from);
    let found = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
    let there = Command::new(&found).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no {name} (cargo xtask test --stage prometheus brings it)");
    }
    there.then_some(found)
}

fn deploy(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus").join(name).display().to_string()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn promtool_finds_nothing_wrong_with_rules_their_tests_and_the_scrape_job() {
    let Some(promtool) = program("promtool") else { return };
    for words in [
        ["check", "rules", &deploy("glake.rules.yml")],
        ["test", "rules", &deploy("glake.rules.test.yml")],
        ["check", "config", &deploy("scrape.yml")],
    ] {
        let ran = Command::new(&promtool).args(words).output().unwrap();
        assert!(ran.status.success(), "{words:?}: {}", text(&ran));
    }
}

#[test]
fn every_metric_that_a_rule_names_exists() {
    let rules = std::fs::read_to_string(deploy("glake.rules.yml")).unwrap();
    let expressions = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = expressions.flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let mut seen = 0;
    for word in words.filter(|word| word.starts_with("glake_")) {
        let stem =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        let known = glake::telemetry::metrics::table::TABLE.iter().any(|family| family.name == stem);
        assert!(known, "{word} is no metric of the agent");
        seen += 1;
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn promtool_finds_nothing_wrong_with_the_classic_format() {
    let (Some(promtool), true) = (program("promtool"), can_watch()) else { return };
    let agent = Setup::new(&["--interval", "200ms", "--profile", "full"]).start();
    let body = agent.get("/metrics");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let ran = check.wait_with_output().unwrap();
    assert!(ran.status.success() && text(&ran).trim().is_empty(), "{}\n{body}", text(&ran));
}

struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, agent: &Agent) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n  - job_name: glake\n    \
             honor_labels: true\n    static_configs: [{{targets: [\"{}\"]}}]\n",
            deploy("glake.rules.yml"),
            agent.address
        );
        std::fs::write(&config, text).unwrap();
        // Prometheus cannot be asked for a free port: one is found, given back, and taken by it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .spawn()
            .unwrap();
        let prometheus = Prometheus { child, address, _folder: folder };
        wait("Prometheus", || std::net::TcpStream::connect(address).ok());
        prometheus
    }

    fn api(&self, path: &str) -> Value {
        let (_, body) = get(self.address, path, "");
        // A chunked body carries its lengths between the lines.
        let json = body.find('{').and_then(|from| Some(&body[from..=body.rfind('}')?]));
        let json = json.map(|json| json.split("\r\n").step_by(2).collect::<String>());
        json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }

    /// The values of an instant query.
    fn query(&self, promql: &str) -> Vec<(Value, f64)> {
        let encoded: String = promql.bytes().map(|b| format!("%{b:02X}")).collect();
        let answer = self.api(&format!("/api/v1/query?query={encoded}"));
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let value = |r: &Value| r["value"][1].as_str().and_then(|v| v.parse().ok()).unwrap_or(f64::NAN);
        results.iter().map(|r| (r["metric"].clone(), value(r))).collect()
    }
}

/// Reads and writes past the page cache.
fn disk_load() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let of = format!("of={}", folder.path().join("blocks").display());
    let ran = Command::new("dd")
        .args(["if=/dev/zero", &of, "bs=4k", "count=256", "oflag=direct"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", text(&ran));
}

#[test]
fn a_real_prometheus_scrapes_openmetrics_and_answers_promql() {
    let (Some(program), true) = (program("prometheus"), can_watch()) else { return };
    let agent = Setup::new(&["--interval", "200ms"]).start();
    let prometheus = Prometheus::start(&program, &agent);
    wait("the first scrape", || {
        prometheus.query("up{job=\"glake\"}").first().filter(|(_, up)| *up == 1.0).cloned()
    });
    let written = |range: &str| {
        let found = prometheus
            .query(&format!("sum(increase(glake_block_io_bytes_total{{operation=\"write\"}}[{range}]))"));
        found.first().map_or(0.0, |(_, bytes)| *bytes)
    };
    let found = wait("bytes written", || {
        disk_load();
        Some(written("1m")).filter(|bytes| *bytes >= 500_000.0)
    });
    assert!(found.is_finite());
    let query = "histogram_quantile(0.99, sum by (le, device, operation) (rate({__name__=~\"glake_block_device_duration_seconds_bucket|\
                 glake_nvme_command_duration_seconds_bucket\"}[1m])))";
    let p99 = wait("a latency", || {
        disk_load();
        prometheus.query(query).into_iter().find(|(_, seconds)| *seconds > 0.0)
    });
    assert!(p99.1 < 10.0, "{p99:?}");
    let series = prometheus.query("count({__name__=~\"glake_.+|process_.+\", job=\"glake\"})")[0].1;
    assert!(series > 30.0 && series <= 5000.0, "{series}");
    let unit = &prometheus.api("/api/v1/targets/metadata?metric=glake_block_io_bytes")["data"][0]["unit"];
    assert_eq!(unit, "bytes", "only OpenMetrics carries units: the other format was scraped");
    assert_eq!(prometheus.query("glake_build_info")[0].0["version"], env!("CARGO_PKG_VERSION"));
    let groups = prometheus.api("/api/v1/rules")["data"]["groups"].clone();
    let rules = groups[0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 5 && rules.iter().all(|rule| rule["health"] != "err"), "{groups}");
}
