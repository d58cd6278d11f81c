//! The file of one unit: a header that says what it contains, and the bytes of the unit. Other servers get units in the same form.
//!
//! A file is written under another name and renamed, so a crash leaves no half of a unit under its name. A file is used only if
//! every part of it is as expected: its length, the header, the identity, the tokens, and the checksum of the bytes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::checksum::checksum;
use crate::core::cached_unit::{UnitContent, UnitId, UnitKind};

/// The first bytes of each file: the kind of the unit, and the version of the format.
fn magic(kind: UnitKind) -> &'static [u8; 8] {
    match kind {
        UnitKind::Block => b"cuelkv01",
        UnitKind::State => b"cuelst01",
    }
}

/// Bytes of the header: the magic, two hashes, the tokens, the length and the checksum of the content, the header's own checksum.
pub(super) const HEADER_BYTES: usize = 8 + 32 + 32 + 64 + 8 + 16 + 16;

/// The end of the name of a unit's file.
fn suffix(kind: UnitKind) -> &'static str {
    match kind {
        UnitKind::Block => ".kv",
        UnitKind::State => ".state",
    }
}

/// The end of the name of a file that is being written.
pub(super) const UNFINISHED: &str = "tmp";

/// Why a unit was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not the file of this unit, or not as it was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// The path of a unit's file.
pub(super) fn path(directory: &Path, id: &UnitId) -> PathBuf {
    directory.join(format!("{}{}", id.block, suffix(id.kind)))
}

/// The unit whose file has this name.
pub(super) fn id_of(name: &str) -> Option<UnitId> {
    let of_kind = |kind| Some(UnitId { block: name.strip_suffix(suffix(kind))?.parse().ok()?, kind });
    UnitKind::ALL.into_iter().find_map(of_kind)
}

/// The header of a unit with this content and these bytes. Equal headers are of the same content and of bytes with the same
/// checksum.
pub(super) fn header(UnitContent { block, kind }: &UnitContent, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(magic(*kind));
    header.extend(block.hash.0);
    header.extend(block.before.0);
    block.tokens.iter().for_each(|token| header.extend(token.to_le_bytes()));
    header.extend((bytes.len() as u64).to_le_bytes());
    checksum(bytes).iter().for_each(|part| header.extend(part.to_le_bytes()));
    let own = checksum(&header);
    own.iter().for_each(|part| header.extend(part.to_le_bytes()));
    header.try_into().unwrap_or([0; HEADER_BYTES])
}

/// Writes the file of a unit.
///
/// # Errors
/// When the system cannot. No part of the file is left then.
pub(super) fn write(directory: &Path, content: &UnitContent, bytes: &[u8]) -> io::Result<()> {
    let finished = path(directory, &content.id());
    let unfinished = finished.with_added_extension(UNFINISHED);
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(&header(content, bytes))?;
        file.write_all(bytes)
    });
    let renamed = written.and_then(|()| fs::rename(&unfinished, finished));
    if renamed.is_err() {
        // Its error would hide the first one.
        let _ = fs::remove_file(&unfinished);
    }
    renamed
}

/// Reads the file of a unit to `out`, which has its length. Afterwards the file counts as used at `used`.
///
/// # Errors
/// [`ReadError`]. The bytes of `out` are of no use then.
pub(super) fn read(directory: &Path, content: &UnitContent, used: SystemTime, out: &mut [u8]) -> Result<(), ReadError> {
    let mut file = File::open(path(directory, &content.id()))?;
    if file.metadata()?.len() != (HEADER_BYTES + out.len()) as u64 {
        return Err(ReadError::Damaged("it has another length"));
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    file.read_exact(out)?;
    if found != header(content, out) {
        return Err(ReadError::Damaged("it does not contain what its name says"));
    }
    // Only the order of removal depends on it.
    let _ = file.set_modified(used);
    Ok(())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::block_hash::{BlockContent, BlockHash};
    use proptest::prelude::*;

    fn content(number: u8) -> UnitContent {
        UnitContent::of_block(block(number))
    }

    fn block(number: u8) -> BlockContent {
        BlockContent {
            hash: BlockHash([number; 32]),
            before: BlockHash([9; 32]),
            tokens: [7; 16],
            has_media: false,
            is_portable: true,
        }
    }

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn a_block_is_read_as_it_was_written_and_found_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        write(directory.path(), &content(0xab), &bytes).unwrap();
        let mut out = vec![0; 1000];
        read(directory.path(), &content(0xab), NOW, &mut out).unwrap();
        assert_eq!(out, bytes);
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 1, "no other file is left");
        assert_eq!(id_of(names[0].to_str().unwrap()), Some(content(0xab).id()));
        let state = UnitContent::of_state_after(block(0xab));
        assert_eq!(id_of(path(directory.path(), &state.id()).file_name().unwrap().to_str().unwrap()), Some(state.id()));
        for wrong in ["lock", "ab.kv", &format!("{}.kv", "ZZ".repeat(32)), &format!("{}.kv", "AB".repeat(32))] {
            assert_eq!(id_of(wrong), None);
        }
    }

    #[test]
    fn a_file_of_another_block_prefix_or_text_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &content(1), &[5; 100]).unwrap();
        let mut out = [0; 100];
        let state = UnitContent::of_state_after(block(1));
        for other in [content(2), state] {
            fs::copy(path(directory.path(), &content(1).id()), path(directory.path(), &other.id())).unwrap();
        }
        let others = [
            content(2),
            state,
            UnitContent::of_block(BlockContent { before: BlockHash([8; 32]), ..block(1) }),
            UnitContent::of_block(BlockContent { tokens: [8; 16], ..block(1) }),
        ];
        for other in others {
            let error = read(directory.path(), &other, NOW, &mut out).unwrap_err();
            assert!(matches!(error, ReadError::Damaged(_)), "{error}");
        }
        assert!(matches!(read(directory.path(), &content(1), NOW, &mut [0; 99]), Err(ReadError::Damaged(_))));
        assert!(matches!(read(directory.path(), &content(3), NOW, &mut out), Err(ReadError::Io(_))));
    }

    proptest! {
        #[test]
        fn no_damage_of_a_file_goes_unnoticed(
            bytes in prop::collection::vec(any::<u8>(), 1..200),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
            cut in any::<prop::sample::Index>(),
        ) {
            let directory = tempfile::tempdir().unwrap();
            write(directory.path(), &content(1), &bytes).unwrap();
            let file = path(directory.path(), &content(1).id());
            let whole = fs::read(&file).unwrap();
            let mut damaged = whole.clone();
            damaged[at.index(whole.len())] ^= change;
            for damaged in [&damaged[..], &whole[..cut.index(whole.len())], &[&whole[..], &[0]].concat()] {
                fs::write(&file, damaged).unwrap();
                let read = read(directory.path(), &content(1), NOW, &mut vec![0; bytes.len()]);
                prop_assert!(matches!(read, Err(ReadError::Damaged(_))));
            }
        }

        #[test]
        fn random_bytes_are_never_a_block(random in prop::collection::vec(any::<u8>(), 0..400)) {
            let directory = tempfile::tempdir().unwrap();
            fs::write(path(directory.path(), &content(1).id()), &random).unwrap();
            let mut out = vec![0; random.len().saturating_sub(HEADER_BYTES)];
            prop_assert!(read(directory.path(), &content(1), NOW, &mut out).is_err());
        }
    }
}
