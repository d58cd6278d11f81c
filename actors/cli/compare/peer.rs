//! Finds the peers' programs and their versions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Subdirectories of a build that may contain the programs.
const SUBDIRECTORIES: [&str; 2] = ["bin", "build/bin"];

/// The programs of one build of llama.cpp or of a compatible fork; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The directory of the programs.
    pub folder: PathBuf,
    /// `llama-bench`
    pub bench: Option<PathBuf>,
    /// `llama-server`
    pub server: Option<PathBuf>,
}

/// Why there is no peer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No peer was named, and none is installed.
    #[error("no peer: neither llama-bench nor llama-server is in a directory of PATH ({}); name the directory of a build with --peer", listed(.searched))]
    NotOnPath {
        /// The directories of PATH.
        searched: Vec<PathBuf>,
    },
    /// The path does not exist.
    #[error("no peer at {}: no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// The directory has neither program.
    #[error("no peer in {}: neither llama-bench nor llama-server is in {}", path.display(), listed(.searched))]
    NotInFolder {
        /// The named directory.
        path: PathBuf,
        /// The searched directories.
        searched: Vec<PathBuf>,
    },
    /// The file has another name.
    #[error("{} is neither llama-bench nor llama-server; name one of these files, or their directory", .0.display())]
    Unknown(PathBuf),
}

fn listed(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if folders.is_empty() { "which is empty".to_owned() } else { folders.join(", ") }
}

/// The peers at these paths; without paths, the first peer in the search path.
///
/// # Errors
/// [`PeerError`] when a path leads to none.
pub fn find(named: &[PathBuf], search_path: &[PathBuf]) -> Result<Vec<Peer>, PeerError> {
    if named.is_empty() {
        let found = search_path.iter().find_map(|folder| in_folder(folder));
        return found.map(|peer| vec![peer]).ok_or_else(|| PeerError::NotOnPath { searched: search_path.to_vec() });
    }
    let mut peers: Vec<Peer> = Vec::new();
    for path in named {
        let peer = at(path)?;
        // Two programs in one directory are one peer.
        match peers.iter_mut().find(|other| other.folder == peer.folder) {
            Some(other) => {
                other.bench = other.bench.take().or(peer.bench);
                other.server = other.server.take().or(peer.server);
            }
            None => peers.push(peer),
        }
    }
    Ok(peers)
}

fn at(path: &Path) -> Result<Peer, PeerError> {
    if path.is_dir() {
        let within = SUBDIRECTORIES.iter().map(|folder| path.join(folder));
        let searched: Vec<PathBuf> = std::iter::once(path.to_owned()).chain(within).collect();
        let found = searched.iter().find_map(|folder| in_folder(folder));
        return found.ok_or_else(|| PeerError::NotInFolder { path: path.to_owned(), searched });
    }
    if !path.is_file() {
        return Err(PeerError::NoSuchPath(path.to_owned()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let peer = Peer { folder: parent.to_owned(), bench: None, server: None };
    // A file name without a directory would be searched in PATH.
    let file = path.file_name().map(|name| parent.join(name));
    match path.file_stem().map(|stem| stem.to_string_lossy()) {
        Some(stem) if stem == "llama-bench" => Ok(Peer { bench: file, ..peer }),
        Some(stem) if stem == "llama-server" => Ok(Peer { server: file, ..peer }),
        _ => Err(PeerError::Unknown(path.to_owned())),
    }
}

fn in_folder(folder: &Path) -> Option<Peer> {
    let program = |name: &str| {
        let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        path.is_file().then_some(path)
    };
    let (bench, server) = (program("llama-bench"), program("llama-server"));
    (bench.is_some() || server.is_some()).then(|| Peer { folder: folder.to_owned(), bench, server })
}

impl Peer {
    /// The output of a program with this option; empty if it does not run.
    fn output_of(program: &Path, option: &str) -> String {
        let output = Command::new(program).arg(option).stdin(Stdio::null()).output();
        let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The help text of llama-bench; empty without one.
    #[must_use]
    pub fn bench_help(&self) -> String {
        help(self.bench.as_deref())
    }

    /// The help text of llama-server; empty without one.
    #[must_use]
    pub fn server_help(&self) -> String {
        help(self.server.as_deref())
    }

    /// The version and commit of the build, or else the path of its directory.
    #[must_use]
    pub fn name(&self) -> String {
        let programs = self.bench.iter().chain(&self.server);
        let version = programs.filter_map(|program| version(&Peer::output_of(program, "--version"))).next();
        version.unwrap_or_else(|| self.folder.display().to_string())
    }
}

/// The help text lists the supported options.
fn help(program: Option<&Path>) -> String {
    program.map(|program| Peer::output_of(program, "--help")).unwrap_or_default()
}

/// A distinct name for each peer; builds with the same version include the directory.
#[must_use]
pub fn names(peers: &[Peer]) -> Vec<String> {
    let own: Vec<String> = peers.iter().map(Peer::name).collect();
    let is_shared = |name: &String| own.iter().filter(|other| *other == name).count() > 1;
    let name = |(name, peer): (&String, &Peer)| match is_shared(name) {
        true => format!("{name} in {}", peer.folder.display()),
        false => name.clone(),
    };
    own.iter().zip(peers).map(name).collect()
}

/// Version and commit from "version: 0.5.0-dev (build 1, commit 0c1e570)" or "version: 4000 (0c1e570)".
fn version(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.trim().strip_prefix("version:"))?.trim();
    let Some((version, rest)) = line.split_once('(') else {
        return (!line.is_empty()).then(|| line.to_owned());
    };
    let inside = rest.trim_end().trim_end_matches(')');
    let commit = inside.rsplit_once("commit ").map_or(inside, |(_, commit)| commit);
    Some(format!("{} ({commit})", version.trim()))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn folder(programs: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for program in programs {
            let path = folder.path().join(format!("{program}{}", std::env::consts::EXE_SUFFIX));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn a_peer_is_named_by_its_directory_or_a_program() {
        let build = folder(&["build/bin/llama-bench", "build/bin/llama-server"]);
        let [root, bin] = [build.path().to_owned(), build.path().join("build/bin")];
        let [found] = &find(std::slice::from_ref(&root), &[]).unwrap()[..] else { panic!() };
        assert!(found.bench.is_some() && found.server.is_some() && found.folder == bin);
        let bench = bin.join(format!("llama-bench{}", std::env::consts::EXE_SUFFIX));
        let server = bin.join(format!("llama-server{}", std::env::consts::EXE_SUFFIX));
        let [only] = &find(std::slice::from_ref(&bench), &[]).unwrap()[..] else { panic!() };
        assert_eq!((only.bench.as_ref(), only.server.as_ref()), (Some(&bench), None));
        assert_eq!(
            find(&[bench, server], &[]).unwrap(),
            std::slice::from_ref(found),
            "two programs of one directory are one peer"
        );
    }

    #[test]
    fn a_named_peer_precedes_the_first_one_in_the_search_path() {
        let (empty, one, two) = (folder(&[]), folder(&["llama-server"]), folder(&["llama-bench"]));
        let path = [&empty, &one, &two].map(|folder| folder.path().to_owned());
        let found = find(&[], &path).unwrap();
        assert!(found.len() == 1 && found[0].server.is_some() && found[0].bench.is_none());
        assert_eq!(find(&[two.path().to_owned()], &path).unwrap()[0].folder, two.path());
    }

    #[test]
    fn errors_contain_programs_and_searched_directories() {
        let (empty, other) = (folder(&[]), folder(&["llama-cli"]));
        let error = |named: &[PathBuf], path: &[PathBuf]| find(named, path).unwrap_err().to_string();
        let folder = empty.path().to_owned();
        for words in ["llama-bench", "llama-server", "PATH", "--peer", &folder.display().to_string()] {
            assert!(error(&[], std::slice::from_ref(&folder)).contains(words), "{words}");
        }
        assert!(error(std::slice::from_ref(&folder), &[]).contains(&folder.join("build/bin").display().to_string()));
        assert!(error(&[folder.join("nowhere")], &[]).contains("no such file or directory"));
        let cli = other.path().join(format!("llama-cli{}", std::env::consts::EXE_SUFFIX));
        assert!(error(&[cli], &[]).contains("neither llama-bench nor llama-server"));
        assert!(error(&[], &[]).contains("PATH (which is empty)"));
    }

    #[test]
    fn versions_are_read_in_old_and_new_formats() {
        let named = |output: &str| version(output);
        assert_eq!(named("version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with").unwrap(), "0.5.0-dev (0c1e570)");
        assert_eq!(named("ggml init\nversion: 4000 (abc1234)\n").unwrap(), "4000 (abc1234)");
        assert_eq!(named("version: 7").unwrap(), "7");
        assert_eq!(named("error: unknown argument --version"), None);
        assert_eq!(named(""), None);
    }
}
