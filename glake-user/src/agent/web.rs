//! The web configuration: TLS and users, in a file of its own so that it can be readable by root alone. The keys are
//! those that Prometheus's exporters use; the format is TOML as everywhere in GLake.
//!
//! ```toml
//! [tls_server_config]
//! cert_file = "/etc/glake/tls.crt"
//! key_file = "/etc/glake/tls.key"
//! client_ca_file = "/etc/glake/ca.crt"   # optional: clients must show a certificate of this authority
//!
//! [basic_auth_users]
//! prometheus = "$2y$10$..."              # bcrypt: htpasswd -nB prometheus
//! ```

use super::config::nearest;
use crate::error::{Error, Kind, Result};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};

/// TLS and users, ready for use.
#[derive(Clone, Default)]
pub struct Web {
    /// `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// bcrypt hashes by user. Empty: nobody has to say who they are.
    pub users: BTreeMap<String, String>,
    /// Clients must show a certificate.
    pub client_certificates: bool,
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Hashes stay out of logs.
        write!(f, "Web {{ tls: {}, users: {} }}", self.tls.is_some(), self.users.len())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tls_server_config: Option<Tls>,
    #[serde(default)]
    basic_auth_users: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    client_ca_file: Option<PathBuf>,
}

const KEYS: [&str; 5] = ["tls_server_config", "basic_auth_users", "cert_file", "key_file", "client_ca_file"];

impl Web {
    /// Reads the file, and the keys and certificates that it names. Without a file: plain HTTP for everybody.
    ///
    /// # Errors
    /// Whatever is wrong with it; nothing of a wrong file is used.
    pub fn read(path: Option<&Path>) -> Result<Web> {
        let Some(path) = path else { return Ok(Web::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::os(format!("reading the web configuration {}", path.display()), e))?;
        let file = parse(&text, path)?;
        for (user, hash) in &file.basic_auth_users {
            check_hash(hash)
                .map_err(|e| e.remedy(format!("{}: user {user}: htpasswd -nB {user}", path.display())))?;
        }
        Ok(Web {
            client_certificates: file
                .tls_server_config
                .as_ref()
                .is_some_and(|tls| tls.client_ca_file.is_some()),
            tls: file.tls_server_config.map(|tls| tls_config(&tls)).transpose()?,
            users: file.basic_auth_users,
        })
    }

    /// Whether this may answer on `listen`: beyond loopback, clients must be known and nobody may listen in.
    ///
    /// # Errors
    /// What is missing.
    pub fn allows(&self, listen: SocketAddr, allow_open: bool) -> Result<()> {
        if listen.ip().is_loopback() || allow_open {
            return Ok(());
        }
        let known = self.client_certificates || !self.users.is_empty();
        let missing = match (self.tls.is_some(), known) {
            (true, true) => return Ok(()),
            (true, false) => "users or client certificates",
            (false, true) => "TLS",
            (false, false) => "TLS and users",
        };
        Err(Error::new(Kind::Misuse, format!("http.listen = {listen} can be reached from other hosts and has no {missing}"))
            .remedy("set http.web_config, or http.allow_open = true if the network is trusted, or listen on 127.0.0.1"))
    }
}

fn parse(text: &str, path: &Path) -> Result<File> {
    toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| {
            text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
        });
        let error = Error::new(Kind::Misuse, format!("{}:{line}: {}", path.display(), e.message()));
        let unknown = e.message().split('`').nth(1).filter(|_| e.message().starts_with("unknown field"));
        match unknown.and_then(|word| nearest(word, KEYS)) {
            Some(near) => error.remedy(format!("did you mean {near}?")),
            None => error,
        }
    })
}

/// bcrypt's modular format, checked by its shape: `$2b$10$` and 53 characters.
fn check_hash(hash: &str) -> Result<()> {
    let well =
        hash.len() == 60 && hash.parse::<bcrypt::HashParts>().is_ok_and(|parts| parts.get_cost() <= 15);
    if well {
        return Ok(());
    }
    // A plain password in the file would be the other way to get here: never repeat it.
    Err(Error::new(Kind::Misuse, "the value is no bcrypt hash with a cost of at most 15"))
}

fn tls_config(tls: &Tls) -> Result<Arc<ServerConfig>> {
    let certificates = certificates(&tls.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key_file).map_err(|e| pem_error(&tls.key_file, e))?;
    let builder = ServerConfig::builder();
    let builder = match &tls.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |e: String| Error::new(Kind::BadInput, format!("{}: {e}", path.display()));
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(path)? {
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder(Arc::new(roots)).build().map_err(|e| wrong(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certificates, key).map_err(|e| {
        Error::new(
            Kind::BadInput,
            format!("{} and {} do not fit", tls.cert_file.display(), tls.key_file.display()),
        )
        .because(e)
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let all = all.map_err(|e| pem_error(path, e))?;
    if all.is_empty() {
        return Err(Error::new(Kind::BadInput, format!("{} holds no certificate", path.display())));
    }
    Ok(all)
}

fn pem_error(path: &Path, e: rustls_pki_types::pem::Error) -> Error {
    Error::new(Kind::BadInput, format!("reading {}", path.display())).because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn beyond_loopback_tls_and_users_are_demanded_by_name() {
        let mut web = Web::default();
        for local in ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1"] {
            web.allows(address(local), false).unwrap();
        }
        let missing = |web: &Web| web.allows(address("0.0.0.0:9517"), false).unwrap_err().chain();
        assert!(missing(&web).contains("has no TLS and users"));
        web.users.insert("a".into(), "b".into());
        assert!(missing(&web).contains("has no TLS"));
        web.allows(address("[::]:9517"), true).unwrap();
    }

    #[test]
    fn a_wrong_file_is_refused_whole_and_passwords_are_never_repeated() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Web::read(Some(file.path())).unwrap_err().chain()
        };
        let plain = read("[basic_auth_users]\nbob = \"hunter2\"\n");
        assert!(plain.contains("bcrypt") && plain.contains("bob") && !plain.contains("hunter2"), "{plain}");
        let slip = read("\n[basic_auth_user]\n");
        assert!(slip.contains(":2:") && slip.contains("did you mean basic_auth_users?"), "{slip}");
        let tls = read("[tls_server_config]\ncert_file = \"/nonexistent\"\nkey_file = \"/nonexistent\"\n");
        assert!(tls.contains("/nonexistent"), "{tls}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_configuration_or_an_error(text in "(?s).{0,200}") { let _ = parse(&text, Path::new("x")); }
    }
}
