use super::*;
use std::path::Path;

fn read(text: &str) -> Result<Layered, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
    Layered::read(&request).map_err(|e| e.chain().replace(&file.path().display().to_string(), "FILE"))
}

#[test]
fn each_layer_beats_the_one_below_and_show_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (default, named) = (folder.path().join("default.toml"), folder.path().join("named.toml"));
    std::fs::write(&default, "interval = \"5s\"\nslow_io = \"1s\"\n").unwrap();
    std::fs::write(&named, "\ninterval = \"6s\"\nlog = \"warn\"\n[http]\nlisten = \"127.0.0.1:1\"\n")
        .unwrap();
    let mut request = Request { default_file: Some(default.clone()), ..Request::default() };
    assert_eq!(Layered::read(&request).unwrap().config.interval, Duration::from_secs(5));

    request.file = Some(named.clone());
    request.variables =
        vec![("GLAKE_LOG".into(), "error".into()), ("GLAKE_HTTP_LISTEN".into(), "127.0.0.1:2".into())];
    request.flags = vec![("http.listen", "127.0.0.1:3".into())];
    let layered = Layered::read(&request).unwrap();
    assert_eq!(layered.config.slow_io, Config::default().slow_io, "--config replaces the default file");
    let shown = layered.show();
    let line = |key: &str| shown.lines().find(|l| l.starts_with(key)).unwrap().to_owned();
    assert!(line("interval").ends_with(&format!("# {}:2", named.display())), "{shown}");
    assert!(line("interval").contains("\"6s\""), "{shown}");
    assert!(line("log").contains("\"error\"") && line("log").ends_with("# environment GLAKE_LOG"), "{shown}");
    assert!(
        line("http.listen").contains("127.0.0.1:3") && line("http.listen").ends_with("# flag"),
        "{shown}"
    );
    assert!(line("slow_io").ends_with("# default"), "{shown}");
}

#[test]
fn what_show_prints_can_be_read_again() {
    let first =
        read("disabled_probes = [\"aer\", \"xid\"]\nmax_cpu_percent = 2.5\n[privileges]\nseal = true\n")
            .unwrap();
    assert_eq!(read(&first.show()).unwrap().config, first.config);
    assert_eq!(read(&first.show()).unwrap().config.disabled_probes, ["aer", "xid"]);
}

#[test]
fn an_unknown_key_is_an_error_with_file_line_and_the_nearest_known_one() {
    let error = read("\n[http]\nlisten = \"127.0.0.1:1\"\nlissten = 3\n").unwrap_err();
    assert_eq!(error, "FILE:4: unknown key http.lissten -> did you mean http.listen?");
    let error = read("frobnicate = 1\n").unwrap_err();
    assert_eq!(error, "FILE:1: unknown key frobnicate -> `glake config show` lists all keys");
    let request = Request { variables: vec![("GLAKE_INTERVALL".into(), "1s".into())], ..Request::default() };
    let error = Layered::read(&request).unwrap_err().chain();
    assert_eq!(error, "unknown variable GLAKE_INTERVALL -> did you mean GLAKE_INTERVAL?");
    for other in ["GLAKE_MODE", "GLAKE_DISABLE", "GLAKE_BIN", "GLAKE_ALLOCATOR_MAX_BYTES"] {
        let request = Request { variables: vec![(other.into(), "x".into())], ..Request::default() };
        assert_eq!(
            Layered::read(&request).unwrap().config,
            Config::default(),
            "{other} belongs to another part"
        );
    }
}

#[test]
fn a_wrong_value_says_where_it_stands_and_what_would_be_right() {
    for (text, wanted) in [
        ("interval = 2", "FILE:1: interval is text in quotes"),
        (
            "interval = \"2\"",
            "interval = \"2\" (FILE:1): it is a whole number with ms, s, m or h, such as \"2s\"",
        ),
        ("interval = \"1ms\"", "interval = \"1ms\" (FILE:1): it must lie between 200ms and 60s"),
        ("interval = \"99999999999999999999s\"", "with ms, s, m or h"),
        ("profile = \"fast\"", "it is light or full"),
        ("max_cpu_percent = nan", "it is a number above 0, at most 100"),
        ("disabled_probes = \"aer\"", "disabled_probes is an array of names in quotes"),
        ("disabled_probes = [1]", "disabled_probes is an array of names in quotes"),
        ("[privileges]\nseal = \"yes\"", "FILE:2: privileges.seal is true or false, without quotes"),
        ("[http]\nlisten = \"localhost\"", "it is an address and a port, such as 127.0.0.1:9517"),
        ("interval = ", "FILE:1: this is not TOML"),
        ("log = \"loud\"", "it is error, warn, info or debug"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn a_missing_named_file_is_an_error_and_a_missing_default_file_is_none() {
    let missing = Path::new("/nonexistent/glake.toml").to_owned();
    let named = Request { file: Some(missing.clone()), ..Request::default() };
    assert!(Layered::read(&named).unwrap_err().chain().contains("/nonexistent/glake.toml"));
    let default = Request { default_file: Some(missing), ..Request::default() };
    assert_eq!(Layered::read(&default).unwrap().config, Config::default());
}

#[test]
fn a_reload_knows_which_keys_need_a_restart() {
    let old = read("interval = \"2s\"\n").unwrap();
    let new = read("interval = \"3s\"\nprofile = \"full\"\n[http]\nlisten = \"127.0.0.1:1\"\n").unwrap();
    assert_eq!(old.needs_restart(&new.config), ["profile", "http.listen"]);
}

#[test]
fn the_shipped_file_is_the_defaults_and_explains_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/glake.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let uncommented: String = text
        .lines()
        .map(|line| {
            let rest = line.strip_prefix("# ").or_else(|| line.strip_prefix('#')).unwrap_or(line);
            if (rest.starts_with('[') && rest.ends_with(']'))
                || rest.split_once(" = ").is_some_and(|(k, _)| !k.contains(' '))
            {
                format!("{rest}\n")
            } else {
                String::new()
            }
        })
        .collect();
    assert_eq!(read(&text).unwrap().config, Config::default(), "the file as shipped changes nothing");
    let layered = read(&uncommented).unwrap();
    assert_eq!(layered.config, Config::default(), "every value it shows is the default");
    for (key, origin) in KEYS.iter().zip(&layered.origins) {
        assert!(matches!(origin, Origin::File(..)), "{} is not in the file", key.name);
        assert!(text.contains(key.help), "{}: the file explains it in other words", key.name);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_configuration_or_an_error(text in "(?s).{0,200}") {
        let mut layered = read("").unwrap();
        let _ = layered.take_text(&text, Path::new("x"));
    }

    #[test]
    fn any_mutation_of_a_good_file_is_a_configuration_or_an_error(at in 0usize..120, byte: u8) {
        let mut text = b"interval = \"2s\"\ndisabled_probes = [\"aer\"]\nmax_cpu_percent = 1.5\n[http]\nlisten = \"127.0.0.1:1\"\n".to_vec();
        let at = at % text.len();
        text[at] = byte;
        let mut layered = read("").unwrap();
        let _ = layered.take_text(&String::from_utf8_lossy(&text), Path::new("x"));
    }
}
