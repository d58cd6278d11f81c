//! Finds the SPIR-V of the GLSL shaders, and makes the registry of ops of the list in `lib.rs`.
//!
//! Every `.comp` file is one shader, named after its path: `attention/kv_store.comp` is `AttentionKvStore`. What
//! differs by number (tile sizes, the bits of a format, the length of a head) is a specialization constant, so that one
//! shader makes many pipelines.
//!
//! The SPIR-V is kept in `spirv/`, so that a build needs no shader compiler. `spirv/SOURCES` has the hash of the sources that
//! it was compiled from. The feature `compile-shaders` compiles the shaders again and updates `spirv/`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[cfg(feature = "compile-shaders")]
#[path = "build/compile.rs"]
mod compile;

/// Where the SPIR-V of all shaders is kept.
const SPIRV: &str = "spirv";

/// The file with the hash of the sources.
const SOURCES: &str = "spirv/SOURCES";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=lib.rs");
    println!("cargo:rerun-if-changed={SPIRV}");
    fs::write(out.join("ops.rs"), registry(&fs::read_to_string("lib.rs")?)?)?;
    let mut sources = Vec::new();
    find_shaders(Path::new(""), &mut sources)?;
    sources.sort();
    let hash = hash(&sources)?;
    #[cfg(feature = "compile-shaders")]
    compile::update(&sources, &hash)?;
    if fs::read_to_string(SOURCES).is_ok_and(|kept| kept == hash) {
        fs::write(out.join("modules.rs"), modules(&sources))?;
        Ok(())
    } else {
        Err("shaders/spirv is older than the GLSL: run `cargo build -p cuelight-shaders --features compile-shaders`"
            .into())
    }
}

/// The source of the registry: an entry for each line of the list of ops.
fn registry(lib: &str) -> Result<String, Box<dyn Error>> {
    let list = lib.lines().skip_while(|line| !line.starts_with("// Ops:")).take_while(|line| !line.is_empty());
    let names: Vec<&str> = list.filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    if names.is_empty() {
        return Err(
            "lib.rs has no list of ops: lines `pub mod NAME;` below a comment that starts with `// Ops:`".into()
        );
    }
    let entry = |name: &&str| format!("    OpEntry {{ name: {name:?}, cases: crate::{name}::cases }},\n");
    let entries: String = names.iter().map(entry).collect();
    Ok(format!("/// Every op, in the order of the list in `lib.rs`.\npub const ALL: &[OpEntry] = &[\n{entries}];\n"))
}

/// The source of the table of modules.
fn modules(sources: &[PathBuf]) -> String {
    let names: String = shaders(sources).map(|file| format!("    {},\n", module_name(file))).collect();
    format!("modules! {{\n{names}}}\n")
}

/// The shaders among the sources; the others are included.
fn shaders(sources: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    sources.iter().filter(|file| file.extension().is_some_and(|ending| ending == "comp"))
}

/// The hash of all sources: FNV-1a (Fowler, Noll and Vo), 64 bits, over their paths and texts without carriage returns.
fn hash(sources: &[PathBuf]) -> Result<String, Box<dyn Error>> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for file in sources {
        let path = file.iter().filter_map(|part| part.to_str()).collect::<Vec<_>>().join("/");
        let text = fs::read(file)?;
        for byte in path.bytes().chain(text).filter(|byte| *byte != b'\r') {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}\n"))
}

/// Collects the GLSL files of a folder and of those in it, and watches them for changes.
fn find_shaders(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in fs::read_dir(here)? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            find_shaders(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "comp" || ending == "glsl") {
            println!("cargo:rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}

/// `attention/kv_store.comp` is `AttentionKvStore`.
fn module_name(file: &Path) -> String {
    let path = file.with_extension("");
    let words = path.iter().flat_map(|part| part.to_str().unwrap_or_default().split('_'));
    let capitalised =
        words.flat_map(|word| word[..1].to_uppercase().chars().chain(word[1..].chars()).collect::<Vec<_>>());
    capitalised.collect()
}
