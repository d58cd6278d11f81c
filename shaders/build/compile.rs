//! Compiles the GLSL shaders to SPIR-V with glslang.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use glslang::error::GlslangError;
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, GlslProfile, ShaderInput, ShaderSource, ShaderStage, SourceLanguage, SpirvVersion,
    Target, VulkanVersion,
};

/// Compiles every shader and replaces the kept SPIR-V.
pub fn update(sources: &[PathBuf], hash: &str) -> Result<(), Box<dyn Error>> {
    let compiler = Compiler::acquire().ok_or("glslang does not start")?;
    let mut binaries = Vec::new();
    for file in super::shaders(sources) {
        let name = super::module_name(file);
        let code = compile(compiler, file)
            .map_err(|error| format!("shaders/{} (as {name}) does not compile:\n{error}", file.display()))?;
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        binaries.push((Path::new(super::SPIRV).join(format!("{name}.spv")), bytes));
    }
    if is_kept(&binaries, hash) {
        return Ok(());
    }
    // Only after all have compiled, so that what is kept belongs together.
    if fs::exists(super::SPIRV)? {
        fs::remove_dir_all(super::SPIRV)?;
    }
    fs::create_dir(super::SPIRV)?;
    for (file, bytes) in binaries {
        fs::write(file, bytes)?;
    }
    Ok(fs::write(super::SOURCES, hash)?)
}

/// Whether these binaries are kept already. Writing them again would compile all that contains them again.
fn is_kept(binaries: &[(PathBuf, Vec<u8>)], hash: &str) -> bool {
    let is_same = |(file, bytes): &(PathBuf, Vec<u8>)| fs::read(file).is_ok_and(|kept| kept == *bytes);
    let files = fs::read_dir(super::SPIRV).map_or(0, Iterator::count);
    let is_current = fs::read_to_string(super::SOURCES).is_ok_and(|kept| kept == hash);
    is_current && files == binaries.len() + 1 && binaries.iter().all(is_same)
}

/// The SPIR-V words of one shader.
fn compile(compiler: &Compiler, file: &Path) -> Result<Vec<u32>, String> {
    let source = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let source = ShaderSource::from(source);
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_3, spirv_version: SpirvVersion::SPIRV1_6 },
        version_profile: Some((460, GlslProfile::Core)),
        ..CompilerOptions::default()
    };
    let mut includes = Includes { folder: file.parent().unwrap_or(Path::new("")).to_owned() };
    let message = |error: GlslangError| error.to_string();
    let input =
        ShaderInput::new(&source, ShaderStage::Compute, &options, None, Some(&mut includes)).map_err(message)?;
    compiler.create_shader(input).and_then(|shader| shader.compile()).map(without_names).map_err(message)
}

/// The module without its debug instructions (SPIR-V specification, 2.4 and 3.52.2). A driver does not use them, and
/// glslang writes addresses of its own memory into some names, which differ from run to run.
fn without_names(module: Vec<u32>) -> Vec<u32> {
    const HEADER_WORDS: usize = 5;
    const OP_SOURCE_CONTINUED: u32 = 2;
    const OP_LINE: u32 = 8;
    let (header, mut rest) = module.split_at(HEADER_WORDS);
    let mut kept = header.to_vec();
    while let Some(&first) = rest.first() {
        let words = ((first >> 16) as usize).clamp(1, rest.len());
        let (instruction, next) = rest.split_at(words);
        if !(OP_SOURCE_CONTINUED..=OP_LINE).contains(&(first & 0xffff)) {
            kept.extend_from_slice(instruction);
        }
        rest = next;
    }
    kept
}

/// Finds `#include "x"` in the folder of the file, and `#include <x>` under `shaders/`.
struct Includes {
    folder: PathBuf,
}

impl IncludeHandler for Includes {
    fn include(&mut self, kind: IncludeType, name: &str, _includer: &str, depth: usize) -> Option<IncludeResult> {
        const DEEPEST: usize = 8;
        if depth > DEEPEST {
            return None;
        }
        let path = if kind == IncludeType::Local { self.folder.join(name) } else { PathBuf::from(name) };
        let data = fs::read_to_string(&path).ok()?;
        Some(IncludeResult { name: path.display().to_string(), data })
    }
}
