//! Basic authentication against bcrypt hashes. A hash is slow on purpose: one is computed at a time, few may wait,
//! and a header that was right once is remembered.

use base64::{Engine, engine::general_purpose::STANDARD};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

/// Requests that may wait for a hash.
const WAITING: usize = 16;
/// Right headers that are remembered.
const REMEMBERED: usize = 16;
/// A hash of nobody's password: an unknown user costs as much time as a known one.
const NOBODY: &str = "$2b$10$6/wJZfw/Ddxt..r.hEyoPufmlYKBH941WIaWpECG7wKOLzUq0zpx6";

/// Who may come in.
#[derive(Debug)]
pub(super) struct Gate {
    users: BTreeMap<String, String>,
    right: Mutex<Vec<Vec<u8>>>,
    waiting: Arc<Semaphore>,
    hashing: Arc<Semaphore>,
}

/// The answer to a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Come in.
    Welcome,
    /// Wrong or missing.
    Refused,
    /// Too many are being checked.
    Busy,
}

impl Gate {
    pub(super) fn new(users: BTreeMap<String, String>) -> Gate {
        let (waiting, hashing) = (Arc::new(Semaphore::new(WAITING)), Arc::new(Semaphore::new(1)));
        Gate { users, right: Mutex::default(), waiting, hashing }
    }

    /// Whether everybody may come in.
    pub(super) fn is_open(&self) -> bool {
        self.users.is_empty()
    }

    /// Checks an `Authorization` header.
    pub(super) async fn check(&self, header: Option<&[u8]>) -> Verdict {
        if self.is_open() {
            return Verdict::Welcome;
        }
        let Some(header) = header else { return Verdict::Refused };
        if self.remembers(header) {
            return Verdict::Welcome;
        }
        let Some((user, password)) = credentials(header) else { return Verdict::Refused };
        let Ok(_place) = self.waiting.try_acquire() else { return Verdict::Busy };
        let Ok(_turn) = self.hashing.acquire().await else { return Verdict::Busy };
        let known = self.users.get(&user);
        let (hash, is_known) = (known.map_or(NOBODY, String::as_str).to_owned(), known.is_some());
        let fits =
            tokio::task::spawn_blocking(move || bcrypt::verify(password, &hash).unwrap_or(false)).await;
        if !(fits.unwrap_or(false) && is_known) {
            return Verdict::Refused;
        }
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if right.len() >= REMEMBERED {
            right.remove(0);
        }
        right.push(header.to_owned());
        Verdict::Welcome
    }

    fn remembers(&self, header: &[u8]) -> bool {
        let right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        // Every entry and every byte is looked at, so that the time tells nothing about how near a guess was.
        right.iter().fold(false, |found, known| found | same(known, header))
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// `Basic <base64 of user:password>` (RFC 7617).
fn credentials(header: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(header).ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    // bcrypt looks at 72 bytes: a longer password would be cut silently.
    (password.len() <= 72).then(|| (user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_nobody_is_one_that_bcrypt_computes() {
        assert!(!bcrypt::verify("x", NOBODY).unwrap(), "a malformed hash would answer at once, and tell");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_right_password_comes_in_and_nothing_else_does() {
        // bob:right, with the least cost that bcrypt takes.
        let gate = Gate::new([("bob".to_owned(), bcrypt::hash("right", 4).unwrap())].into());
        let check = |header: &'static str| gate.check(Some(header.as_bytes()));
        assert_eq!(check("Basic Ym9iOnJpZ2h0").await, Verdict::Welcome);
        assert_eq!(check("basic Ym9iOnJpZ2h0").await, Verdict::Welcome);
        assert_eq!(check("Basic Ym9iOndyb25n").await, Verdict::Refused);
        assert_eq!(check("Basic YWw6cmlnaHQ=").await, Verdict::Refused, "al is not known");
        assert_eq!(check("Bearer Ym9iOnJpZ2h0").await, Verdict::Refused);
        assert_eq!(gate.check(None).await, Verdict::Refused);
        assert_eq!(Gate::new(BTreeMap::new()).check(None).await, Verdict::Welcome);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_flood_of_guesses_is_told_to_wait_and_a_known_client_still_comes_in() {
        let gate = Gate::new([("bob".to_owned(), bcrypt::hash("right", 4).unwrap())].into());
        assert_eq!(gate.check(Some(b"Basic Ym9iOnJpZ2h0")).await, Verdict::Welcome);
        let _all = gate.waiting.acquire_many(WAITING as u32).await.unwrap();
        assert_eq!(gate.check(Some(b"Basic Ym9iOndyb25n")).await, Verdict::Busy);
        assert_eq!(gate.check(Some(b"Basic Ym9iOnJpZ2h0")).await, Verdict::Welcome);
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_taken_without_a_panic(header: Vec<u8>) { let _ = credentials(&header); }
    }
}
