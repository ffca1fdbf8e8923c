//! A checkpoint: one file, a folder of files, or an index that says which file holds which tensor.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::header::{self, Header, Tensor};
use super::{ALIGN, MAX_HEADER};
use crate::copy::{Source, Span};
use crate::error::{Error, Kind, Result};

/// One opened file and its header.
#[derive(Debug)]
pub struct Shard {
    /// The file.
    pub source: Arc<Source>,
    /// What it holds.
    pub header: Header,
}

/// Which file holds which tensor, as an index says.
type Index = BTreeMap<String, PathBuf>;

/// All files of a checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    /// In the order of their names.
    pub shards: Vec<Shard>,
}

/// A tensor's place in a block of device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The index of its shard.
    pub shard: usize,
    /// What it is.
    pub tensor: Tensor,
    /// Its first byte in the block, a multiple of [`ALIGN`].
    pub at: u64,
}

impl Checkpoint {
    /// Opens a safetensors file, an index (`*.safetensors.index.json`), or a folder with either. Reads and checks every
    /// header; no tensor's bytes.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let index = |p: &Path| {
            p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".safetensors.index.json"))
        };
        let (files, wanted) = if path.is_dir() {
            let mut all = listed(path)?;
            match all.iter().position(|p| index(p)) {
                Some(at) => from_index(&all.swap_remove(at))?,
                None => {
                    all.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
                    (all, None)
                }
            }
        } else if index(path) {
            from_index(path)?
        } else {
            (vec![path.to_owned()], None)
        };
        if files.is_empty() {
            let what = format!("{} holds no .safetensors file", path.display());
            return Err(Error::new(Kind::Missing, what));
        }
        let shards = files.iter().map(|f| Shard::open(f)).collect::<Result<Vec<_>>>()?;
        let checkpoint = Checkpoint { shards };
        checkpoint.check(path, wanted.as_ref())?;
        Ok(checkpoint)
    }

    /// No tensor is in two files, and each is in the file that the index names.
    fn check(&self, path: &Path, wanted: Option<&Index>) -> Result<()> {
        let mut found: HashMap<&str, &Path> = HashMap::new();
        for shard in &self.shards {
            for tensor in &shard.header.tensors {
                if let Some(other) = found.insert(&tensor.name, shard.source.path()) {
                    let (one, two) = (other.display(), shard.source.path().display());
                    let what = format!("tensor {:?} is in {one} and in {two}", tensor.name);
                    return Err(Error::new(Kind::BadInput, what)
                        .remedy("two checkpoints in one folder? name the file or the index"));
                }
            }
        }
        for (name, file) in wanted.into_iter().flatten() {
            if found.get(name.as_str()).is_none_or(|f| *f != file) {
                let what = format!(
                    "{} says that tensor {name:?} is in {}, and it is not",
                    path.display(),
                    file.display()
                );
                return Err(Error::new(Kind::BadInput, what)
                    .remedy("index and files are of two downloads: get them again"));
            }
        }
        Ok(())
    }

    /// Every tensor with its place in one block, and the block's size. The order is that of the bytes in the files.
    pub fn places(&self) -> (Vec<Placed>, u64) {
        let mut next = 0_u64;
        let mut all = Vec::new();
        for (shard, s) in self.shards.iter().enumerate() {
            for tensor in &s.header.tensors {
                all.push(Placed { shard, tensor: tensor.clone(), at: next });
                next = (next + tensor.size).next_multiple_of(ALIGN);
            }
        }
        (all, next)
    }

    /// Bytes of all tensors.
    pub fn size(&self) -> u64 {
        self.shards.iter().flat_map(|s| &s.header.tensors).map(|t| t.size).sum()
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Shard> {
        let source = Arc::new(Source::open(path)?);
        let header = read_header(&source).map_err(|e| {
            let remedy = e.remedy_text().map(str::to_owned);
            let named = Error::new(e.kind(), format!("{}: {}", path.display(), without_remedy(&e)));
            remedy.into_iter().fold(named, Error::remedy)
        })?;
        Ok(Shard { source, header })
    }

    /// The reads that bring this shard's tensors to their places in a block at `base`.
    pub fn spans(places: &[Placed], shard: usize, base: u64) -> Vec<Span> {
        let mine = places.iter().filter(|p| p.shard == shard);
        mine.map(|p| Span { offset: p.tensor.offset, size: p.tensor.size, address: base + p.at }).collect()
    }
}

/// An error with its causes, on one line.
fn without_remedy(e: &Error) -> String {
    let chain = e.chain();
    match e.remedy_text() {
        Some(remedy) => chain.strip_suffix(&format!(" -> {remedy}")).unwrap_or(&chain).to_owned(),
        None => chain,
    }
}

fn read_header(source: &Source) -> Result<Header> {
    let start = read_start(source, 64.min(source.size()))?;
    let needed = header::needed(&start, source.size())?;
    header::parse(&read_start(source, needed.min(MAX_HEADER + 8))?, source.size())
}

fn read_start(source: &Source, size: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let mut got = 0;
    while got < bytes.len() {
        match rustix::io::pread(source.cached(), &mut bytes[got..], got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::os("reading the header", e.into())),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

/// The paths in a folder, in the order of their names.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let doing = |e| Error::os(format!("listing {}", folder.display()), e);
    let entries = std::fs::read_dir(folder).map_err(doing)?;
    let mut all = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>().map_err(doing)?;
    all.sort();
    Ok(all)
}

/// The files that an index names, and which tensor it says is in which.
fn from_index(path: &Path) -> Result<(Vec<PathBuf>, Option<Index>)> {
    #[derive(serde::Deserialize)]
    struct Written {
        weight_map: BTreeMap<String, String>,
    }
    let doing = || format!("reading {}", path.display());
    let text = std::fs::read(path).map_err(|e| Error::os(doing(), e))?;
    let index: Written =
        serde_json::from_slice(&text).map_err(|e| Error::new(Kind::BadInput, doing()).because(e))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut wanted = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        // A name, not a way out of the folder.
        if Path::new(&file).file_name().is_none_or(|name| name != file.as_str()) {
            let what = format!(
                "{} puts tensor {tensor:?} into {file:?}, which is no plain file name",
                path.display()
            );
            return Err(Error::new(Kind::BadInput, what));
        }
        wanted.insert(tensor, folder.join(file));
    }
    let mut files: Vec<PathBuf> = wanted.values().cloned().collect();
    files.sort();
    files.dedup();
    Ok((files, Some(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(folder: &Path, name: &str, tensors: &[(&str, u64)]) {
        let dtype = super::super::Dtype::named("U8").unwrap();
        let tensors: Vec<Tensor> = tensors
            .iter()
            .map(|(name, size)| Tensor {
                name: (*name).to_owned(),
                dtype,
                shape: vec![*size],
                offset: 0,
                size: *size,
            })
            .collect();
        let (mut bytes, size) = header::write(&tensors, &BTreeMap::new()).unwrap();
        bytes.resize(usize::try_from(size).unwrap(), 7);
        std::fs::write(folder.join(name), bytes).unwrap();
    }

    fn index(folder: &Path, map: &[(&str, &str)]) -> PathBuf {
        let map: BTreeMap<_, _> = map.iter().copied().collect();
        let path = folder.join("model.safetensors.index.json");
        std::fs::write(&path, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
        path
    }

    #[test]
    fn a_folder_with_an_index_is_one_checkpoint_and_every_tensor_is_aligned() {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "a.safetensors", &[("x", 1000), ("y", 3)]);
        shard(dir.path(), "b.safetensors", &[("z", 513)]);
        shard(dir.path(), "unrelated.safetensors", &[("x", 1)]);
        let path =
            index(dir.path(), &[("x", "a.safetensors"), ("y", "a.safetensors"), ("z", "b.safetensors")]);
        for way in [dir.path(), &path] {
            let all = Checkpoint::open(way).unwrap();
            let (places, size) = all.places();
            let at: Vec<_> = places.iter().map(|p| (&*p.tensor.name, p.shard, p.at)).collect();
            assert_eq!(at, [("x", 0, 0), ("y", 0, 1024), ("z", 1, 1536)]);
            assert_eq!((size, all.size()), (2560, 1516));
        }
    }

    #[test]
    fn a_checkpoint_that_contradicts_itself_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::open(dir.path()).unwrap_err().kind(), Kind::Missing);
        shard(dir.path(), "a.safetensors", &[("x", 10)]);
        shard(dir.path(), "b.safetensors", &[("x", 10)]);
        let says = |path: &Path, words: &str| {
            let e = Checkpoint::open(path).unwrap_err();
            assert!(e.chain().contains(words), "{}", e.chain());
        };
        says(dir.path(), "tensor \"x\" is in");
        says(&index(dir.path(), &[("q", "a.safetensors")]), "and it is not");
        says(&index(dir.path(), &[("x", "../a.safetensors")]), "no plain file name");
        says(&index(dir.path(), &[("x", "c.safetensors")]), "No such file");
        std::fs::write(dir.path().join("a.safetensors"), "version https://git-lfs.github.com/spec/v1\n")
            .unwrap();
        says(&dir.path().join("a.safetensors"), "a.safetensors: the file is a Git LFS pointer");
    }
}
