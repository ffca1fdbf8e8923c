use super::*;
use proptest::prelude::*;

/// Builds BTF as a compiler would.
#[derive(Default)]
struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Builder {
    fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    fn push(&mut self, name: &str, kind: u32, entries: u32, bitfields: bool, size: u32, body: &[u32]) -> u32 {
        let name = self.string(name);
        let info = (u32::from(bitfields) << 31) | (kind << 24) | entries;
        for word in [name, info, size].iter().chain(body) {
            self.types.extend(word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    fn structure(&mut self, name: &str, members: &[(&str, u32, u32)]) -> u32 {
        let body: Vec<u32> =
            members.iter().flat_map(|(n, t, bytes)| [self.string(n), *t, bytes * 8]).collect();
        self.push(name, kind::STRUCT, members.len() as u32, false, 64, &body)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC.to_ne_bytes());
        out.extend([1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            out.extend(u32::to_ne_bytes(word));
        }
        out.extend(&self.types);
        out.extend(&self.strings);
        out
    }
}

fn sample() -> Vec<u8> {
    let mut b = Builder::default();
    let int = b.push("unsigned int", kind::INT, 0, false, 4, &[32]);
    let inner = b.structure("", &[("hidden", int, 4)]);
    let iter = b.structure("iter", &[("sector", int, 0), ("size", int, 8)]);
    let iter_t = b.push("iter_t", kind::TYPEDEF, 0, false, iter, &[]);
    let bio = b.structure("bio", &[("opf", int, 0), ("iter", iter_t, 16), ("", inner, 40)]);
    let pointer = b.push("", kind::PTR, 0, false, bio, &[]);
    let proto = b.push("", kind::FUNC_PROTO, 3, false, 0, &[0, 0, 0, pointer, 0, int]);
    let proto_pointer = b.push("", kind::PTR, 0, false, proto, &[]);
    b.push("btf_trace_block_x", kind::TYPEDEF, 0, false, proto_pointer, &[]);
    let name = b.string("flag");
    // One bit at bit 3.
    b.push("flags", kind::STRUCT, 1, true, 4, &[name, int, (1 << 24) | 3]);
    b.bytes()
}

/// A module's types beside those of [`sample`]: numbers and names go on from there.
fn module() -> Vec<u8> {
    let base = Btf::parse(&sample()).unwrap();
    let mut b =
        Builder { strings: vec![0; base.strings.len()], count: base.len() as u32, ..Builder::default() };
    let command = b.structure("command", &[("id", 1, 2)]);
    let pointer = b.push("", kind::PTR, 0, false, 5, &[]);
    b.structure("ctrl", &[("bio", pointer, 0), ("cmd", command, 24)]);
    let proto = b.push("", kind::FUNC_PROTO, 2, false, 0, &[0, 0, 0, pointer]);
    let proto_pointer = b.push("", kind::PTR, 0, false, proto, &[]);
    b.push("btf_trace_module_x", kind::TYPEDEF, 0, false, proto_pointer, &[]);
    b.strings.drain(..base.strings.len());
    b.bytes()
}

#[test]
fn a_modules_types_refer_to_the_kernels() {
    let mut btf = Btf::parse(&sample()).unwrap();
    let kernels = btf.len();
    btf.extend(&module()).unwrap();
    assert_eq!(btf.len(), kernels + 6);
    assert_eq!(btf.member("ctrl", "cmd.id"), Some(26));
    assert_eq!(
        btf.tracepoint("module_x"),
        Some(vec!["bio".to_owned()]),
        "the kernel's structure by its number"
    );
    assert_eq!(btf.member("bio", "iter.size"), Some(24), "what was there stays");
    assert_eq!(btf.member("ctrl", ""), Some(64), "the end of a structure is its size");
}

#[test]
fn a_broken_module_leaves_the_kernels_types_as_they_were() {
    let mut btf = Btf::parse(&sample()).unwrap();
    let (kernels, bytes) = (btf.len(), module());
    for cut in [0, 5, 23, bytes.len() - 1] {
        btf.extend(&bytes[..cut]).unwrap_err();
        assert_eq!((btf.len(), btf.member("bio", "opf")), (kernels, Some(0)));
    }
}

#[test]
fn members_are_found_through_typedefs_and_anonymous_structures() {
    let btf = Btf::parse(&sample()).unwrap();
    assert_eq!(btf.member("bio", "opf"), Some(0));
    assert_eq!(btf.member("bio", "iter.size"), Some(24));
    assert_eq!(btf.member("bio", "hidden"), Some(44));
}

#[test]
fn what_is_not_there_has_no_offset() {
    let btf = Btf::parse(&sample()).unwrap();
    assert_eq!(btf.member("bio", "missing"), None);
    assert_eq!(btf.member("absent", "opf"), None);
    assert_eq!(btf.member("bio", "opf.deeper"), None);
    assert_eq!(btf.member("flags", "flag"), None, "a bit field has no byte offset");
}

#[test]
fn a_trace_point_names_the_structures_of_its_arguments() {
    let btf = Btf::parse(&sample()).unwrap();
    assert_eq!(btf.tracepoint("block_x"), Some(vec!["bio".to_owned(), String::new()]));
    assert_eq!(btf.tracepoint("block_y"), None);
}

#[test]
fn a_type_of_unknown_kind_is_an_error_that_says_where() {
    let mut b = Builder::default();
    b.push("x", 31, 0, false, 0, &[]);
    let error = Btf::parse(&b.bytes()).err().unwrap();
    assert_eq!(error.kind(), Kind::BadInput);
    assert!(error.to_string().contains("at byte 0"), "{error}");
}

#[test]
fn this_kernel_tells_where_a_request_keeps_its_queue() {
    let Ok(btf) = Btf::read(Path::new("/")) else {
        eprintln!("skipped: this kernel has no BTF");
        return;
    };
    assert_eq!(btf.member("request", "q"), Some(0), "the queue has been the first member since 5.0");
    assert_eq!(btf.tracepoint("block_rq_complete").unwrap()[0], "request");
    assert!(btf.member("bio", "bi_iter.bi_size").unwrap() > btf.member("bio", "bi_iter.bi_sector").unwrap());
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Btf::parse(&bytes);
    }

    #[test]
    fn mutated_types_never_panic(flips in proptest::collection::vec((0usize..600, any::<u8>()), 1..12), cut in 0usize..600) {
        let mut bytes = sample();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 8));
        if let Ok(btf) = Btf::parse(&bytes) {
            let _ = (btf.member("bio", "iter.size"), btf.member("bio", "hidden"), btf.tracepoint("block_x"));
        }
    }
}
