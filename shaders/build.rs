//! Compiles the GLSL shaders to SPIR-V: `permutations.rs` says which.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use glslang::error::GlslangError;
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, GlslProfile, ShaderInput, ShaderSource, ShaderStage, SourceLanguage, SpirvVersion,
    Target, VulkanVersion,
};

mod permutations;

use permutations::{PERMUTATIONS, Permutation};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=permutations.rs");
    for folder in ["gpu", "quant", "matmul", "attention", "experts", "choose_token"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let compiler = Compiler::acquire().ok_or("glslang does not start")?;
    let mut table = String::new();
    for permutation in PERMUTATIONS {
        println!("cargo:rerun-if-changed={}", permutation.file);
        let code = compile(compiler, permutation).map_err(|error| {
            let Permutation { name, file, .. } = permutation;
            format!("shaders/{file} (as {name}) does not compile:\n{error}")
        })?;
        let file = out.join(format!("{}.spv", permutation.name));
        fs::write(&file, code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
        writeln!(table, "    {} => {:?},", permutation.name, file)?;
    }
    fs::write(out.join("modules.rs"), format!("modules! {{\n{table}}}\n"))?;
    Ok(())
}

/// The SPIR-V words of one permutation.
fn compile(compiler: &Compiler, permutation: &Permutation) -> Result<Vec<u32>, String> {
    let source = fs::read_to_string(permutation.file).map_err(|error| error.to_string())?;
    let source = ShaderSource::from(source);
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_3, spirv_version: SpirvVersion::SPIRV1_6 },
        version_profile: Some((460, GlslProfile::Core)),
        ..CompilerOptions::default()
    };
    let mut includes = Includes { beside: Path::new(permutation.file).parent().unwrap_or(Path::new("")).to_owned() };
    let defines: Vec<(&str, Option<&str>)> =
        permutation.defines.iter().map(|(name, value)| (*name, Some(*value))).collect();
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, Some(&defines), Some(&mut includes));
    let told = |error: GlslangError| error.to_string();
    let input = input.map_err(told)?;
    compiler.create_shader(input).and_then(|shader| shader.compile()).map_err(told)
}

/// Finds `#include "x"` beside the file, `#include <x>` under `shaders/`.
struct Includes {
    beside: PathBuf,
}

impl IncludeHandler for Includes {
    fn include(&mut self, kind: IncludeType, name: &str, _includer: &str, depth: usize) -> Option<IncludeResult> {
        const DEEPEST: usize = 8;
        if depth > DEEPEST {
            return None;
        }
        let path = if kind == IncludeType::Local { self.beside.join(name) } else { PathBuf::from(name) };
        let data = fs::read_to_string(&path).ok()?;
        Some(IncludeResult { name: path.display().to_string(), data })
    }
}
