//! No cycle of imports between the files of a crate.
//!
//! A file imports another when it names one of its items in a `use` declaration or in a path. A path through a re-export counts
//! as an import of the file that defines the item. `mod` declarations and re-exports are not imports, and unit tests do not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::tree::{assert_none, code, files};

/// A module path below the crate root, such as `["pipeline", "sampler"]`.
type Path = Vec<String>;

/// The files of a crate by module path.
struct Crate {
    texts: BTreeMap<Path, String>,
    /// (module, name) of each re-export, and the path that it stands for.
    reexports: HashMap<(Path, String), Path>,
}

impl Crate {
    fn new(files: impl IntoIterator<Item = (Path, String)>) -> Self {
        let mut this = Crate { texts: files.into_iter().collect(), reexports: HashMap::new() };
        let declared: Vec<_> = this.texts.iter().flat_map(|(module, text)| this.reexports_of(module, text)).collect();
        this.reexports.extend(declared);
        this
    }

    fn reexports_of(&self, module: &Path, text: &str) -> Vec<((Path, String), Path)> {
        let public = use_declarations(text).into_iter().filter(|(is_public, _)| *is_public);
        let targets = public.flat_map(|(_, tree)| expand(&tree));
        let entry = |(path, name): (Path, String)| Some(((module.clone(), name), self.absolute(module, &path)?));
        targets.filter_map(entry).collect()
    }

    /// A path from the crate root; `None` for a path into another crate.
    fn absolute(&self, module: &Path, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let parent = module[..module.len().checked_sub(1)?].to_vec();
                let rest_is_relative = rest.first().is_some_and(|next| next == "super");
                if rest_is_relative { self.absolute(&parent, rest) } else { Some([&parent, rest].concat()) }
            }
            _ => {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                self.texts.contains_key(&child).then(|| [module, path].concat())
            }
        }
    }

    /// The file that defines what a path names.
    fn file_of(&self, path: &[String], depth: usize) -> Option<Path> {
        let module = (0..=path.len()).rev().map(|len| &path[..len]).find(|module| self.texts.contains_key(*module))?;
        let reexport = path.get(module.len()).and_then(|name| self.reexports.get(&(module.to_vec(), name.clone())));
        match reexport {
            Some(target) if depth < 8 => self.file_of(&[target, &path[module.len() + 1..]].concat(), depth + 1),
            _ => Some(module.to_vec()),
        }
    }

    /// The files that each file imports.
    fn imports(&self) -> BTreeMap<Path, BTreeSet<Path>> {
        let of_file = |(module, text): (&Path, &String)| {
            let private = use_declarations(text).into_iter().filter(|(is_public, _)| !is_public);
            let used = private.flat_map(|(_, tree)| expand(&tree)).map(|(path, _)| path);
            let paths = used.chain(paths(&without_use_declarations(text)));
            let imported = paths.filter_map(|path| self.file_of(&self.absolute(module, &path)?, 0));
            (module.clone(), imported.filter(|other| other != module).collect())
        };
        self.texts.iter().map(of_file).collect()
    }

    /// Groups of files that import each other, directly or through others.
    fn cycles(&self) -> Vec<Vec<Path>> {
        let imports = self.imports();
        let reached: BTreeMap<&Path, BTreeSet<Path>> =
            imports.keys().map(|file| (file, reach(&imports, file))).collect();
        let mut groups: BTreeSet<Vec<Path>> = BTreeSet::new();
        for (file, others) in &reached {
            if others.contains(*file) {
                let group = others.iter().filter(|other| reached[other].contains(*file)).cloned().collect();
                groups.insert(group);
            }
        }
        groups.into_iter().collect()
    }
}

/// All files that `start` imports, directly or through others.
fn reach(imports: &BTreeMap<Path, BTreeSet<Path>>, start: &Path) -> BTreeSet<Path> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<&Path> = imports[start].iter().collect();
    while let Some(file) = pending.pop() {
        if reached.insert(file.clone()) {
            pending.extend(&imports[file]);
        }
    }
    reached
}

/// The trees of a file's `use` declarations, and whether each is a re-export.
fn use_declarations(text: &str) -> Vec<(bool, String)> {
    let starts = text.match_indices("use ").filter(|(at, _)| starts_declaration(&text[..*at]).is_some());
    let tree = |at: usize| {
        text[at + 4..].split(';').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    starts.map(|(at, _)| (starts_declaration(&text[..at]) == Some(true), tree(at))).collect()
}

/// Whether a `use` behind this text starts a declaration, and if so whether the declaration is public.
fn starts_declaration(before: &str) -> Option<bool> {
    let line = before.rsplit('\n').next().unwrap_or_default().trim();
    match line {
        "" => Some(false),
        line if line.starts_with("pub") && (line == "pub" || line.ends_with(')')) => Some(true),
        _ => None,
    }
}

fn without_use_declarations(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(at) = rest.find("use ") {
        let is_declaration = starts_declaration(&rest[..at]).is_some();
        kept.push_str(&rest[..at]);
        rest = &rest[at + 4..];
        if is_declaration {
            rest = rest.split_once(';').map_or("", |(_, after)| after);
        }
    }
    kept + rest
}

/// Every path of a `use` tree, with the name that it gets.
fn expand(tree: &str) -> Vec<(Path, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
        let path: Path = path
            .trim()
            .split("::")
            .filter(|part| *part != "self" || path.trim() == "self")
            .map(str::to_owned)
            .collect();
        // `self::x` starts with `self`, which the filter must keep.
        let path = if tree.starts_with("self::") { [vec!["self".to_owned()], path].concat() } else { path };
        let name = name.map(str::to_owned).or_else(|| path.last().cloned()).unwrap_or_default();
        return vec![(path, name)];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    split_outside_braces(group).iter().flat_map(|part| expand(&format!("{prefix}{}", part.trim()))).collect()
}

fn split_outside_braces(group: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for character in group.chars() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        match parts.last_mut() {
            Some(part) if character != ',' || depth > 0 => part.push(character),
            _ => parts.push(String::new()),
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Every path of several segments in a file's code.
fn paths(code: &str) -> Vec<Path> {
    let is_path = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    let without_visibilities = code.split("pub(in ").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
    let code = std::iter::once(code.split("pub(in ").next().unwrap_or_default()).chain(without_visibilities.skip(1));
    let code = code.collect::<Vec<_>>().join(" ");
    let words = code.split(|character| !is_path(character));
    let path = |word: &str| word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    words.filter(|word| word.contains("::") && !word.starts_with("::")).map(path).collect()
}

fn module_of(folder: &str, file: &str) -> Path {
    let name = file.trim_start_matches(folder).trim_start_matches('/').trim_end_matches(".rs");
    let mut path: Path = name.split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib")) {
        path.pop();
    }
    path
}

fn read(folder: &str) -> Crate {
    let is_counted = |name: &str| {
        !name.ends_with("tests.rs")
            && !name.contains("/tests/")
            && !name.ends_with("/build.rs")
            && !name.ends_with("/main.rs")
    };
    let counted = files(folder, ".rs").into_iter().filter(|(name, _)| is_counted(name));
    Crate::new(counted.map(|(name, text)| (module_of(folder, &name), code(&text))))
}

#[test]
fn no_files_import_each_other_in_a_cycle() {
    let of_crate = |folder: &&str| {
        let name = |path: &Path| format!("{folder}::{}", path.join("::"));
        let cycles = read(folder).cycles();
        cycles.iter().map(|cycle| cycle.iter().map(name).collect::<Vec<_>>().join(", ")).collect::<Vec<_>>()
    };
    assert_none("cycles of imports", ["shaders", "src", "actors"].iter().flat_map(of_crate).collect());
}

#[test]
fn a_cycle_through_a_re_export_is_found() {
    let file = |module: &str, text: &str| {
        let path = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Path>();
        (path, text.to_owned())
    };
    let tree = |of_leaf: &str| {
        Crate::new([
            file("", "pub mod a;\npub mod b;\n"),
            file("a", "pub mod leaf;\npub use self::leaf::Thing;\n"),
            file("a::leaf", of_leaf),
            file("b", "use crate::a::{Thing, leaf::{self as other}};\npub fn make() -> Thing { other::thing() }\n"),
        ])
    };
    assert_eq!(tree("pub struct Thing;\n").cycles(), Vec::<Vec<Path>>::new());
    let cycles = tree("pub struct Thing;\nfn f() { crate::b::make(); }\n").cycles();
    let names: Vec<String> = cycles[0].iter().map(|path| path.join("::")).collect();
    assert_eq!((cycles.len(), names), (1, vec!["a::leaf".to_owned(), "b".to_owned()]));
}
