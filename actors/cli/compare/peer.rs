//! Where peers are, and what they are called.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Within a folder that was named, where builds may leave their programs.
const FOLDERS: [&str; 2] = ["bin", "build/bin"];

/// The programs of one build of llama.cpp, or of a fork with its options; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The folder they are in.
    pub folder: PathBuf,
    /// `llama-bench`
    pub bench: Option<PathBuf>,
    /// `llama-server`
    pub server: Option<PathBuf>,
}

/// Why there is nobody to compare with.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// None was named, and none is installed.
    #[error("no peer: neither llama-bench nor llama-server is in a folder of PATH ({}); name a build's folder with --peer", listed(.looked))]
    NotOnPath {
        /// The folders of PATH.
        looked: Vec<PathBuf>,
    },
    /// A path that is not there.
    #[error("no peer at {}: no such file or folder", .0.display())]
    NoSuchPath(PathBuf),
    /// A folder without programs.
    #[error("no peer in {}: neither llama-bench nor llama-server is in {}", path.display(), listed(.looked))]
    NotInFolder {
        /// The folder that was named.
        path: PathBuf,
        /// Where in it was looked.
        looked: Vec<PathBuf>,
    },
    /// A file of another name.
    #[error("{} is called neither llama-bench nor llama-server; name one of these, or their folder", .0.display())]
    Unknown(PathBuf),
}

fn listed(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if folders.is_empty() { "which is empty".to_owned() } else { folders.join(", ") }
}

/// The peers at these paths; without any, the first on the search path.
///
/// # Errors
/// [`PeerError`] when a path leads to none.
pub fn find(named: &[PathBuf], search_path: &[PathBuf]) -> Result<Vec<Peer>, PeerError> {
    if named.is_empty() {
        let found = search_path.iter().find_map(|folder| in_folder(folder));
        return found.map(|peer| vec![peer]).ok_or_else(|| PeerError::NotOnPath { looked: search_path.to_vec() });
    }
    let mut peers: Vec<Peer> = Vec::new();
    for path in named {
        let peer = at(path)?;
        // The two programs of a build, named one by one, are one peer.
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
        let within = FOLDERS.iter().map(|folder| path.join(folder));
        let looked: Vec<PathBuf> = std::iter::once(path.to_owned()).chain(within).collect();
        let found = looked.iter().find_map(|folder| in_folder(folder));
        return found.ok_or_else(|| PeerError::NotInFolder { path: path.to_owned(), looked });
    }
    if !path.is_file() {
        return Err(PeerError::NoSuchPath(path.to_owned()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let peer = Peer { folder: parent.to_owned(), bench: None, server: None };
    // A bare file name would be looked for on PATH.
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
    /// What a program says of itself when it is asked with this option; nothing of one that does not run.
    fn ask(program: &Path, option: &str) -> String {
        let output = Command::new(program).arg(option).stdin(Stdio::null()).output();
        let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// The help of its server, which tells what options it knows.
    #[must_use]
    pub fn server_help(&self) -> String {
        self.server.as_deref().map(|server| Peer::ask(server, "--help")).unwrap_or_default()
    }

    /// The version and commit that the build tells, or the path of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        let programs = self.bench.iter().chain(&self.server);
        let told = programs.filter_map(|program| version(&Peer::ask(program, "--version"))).next();
        told.unwrap_or_else(|| self.folder.display().to_string())
    }
}

/// Names to tell the peers apart by; of builds that say the same, the folder too.
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

/// Version and commit out of "version: 0.5.0-dev (build 1, commit 0c1e570)" or "version: 4000 (0c1e570)".
fn version(said: &str) -> Option<String> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("version:"))?.trim();
    let Some((version, rest)) = line.split_once('(') else {
        return (!line.is_empty()).then(|| line.to_owned());
    };
    let inside = rest.trim_end().trim_end_matches(')');
    let commit = inside.rsplit_once("commit ").map_or(inside, |(_, commit)| commit);
    Some(format!("{} ({commit})", version.trim()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn a_folder_or_one_of_its_programs_can_be_named() {
        let build = folder(&["build/bin/llama-bench", "build/bin/llama-server"]);
        let [root, bin] = [build.path().to_owned(), build.path().join("build/bin")];
        let [found] = &find(std::slice::from_ref(&root), &[]).unwrap()[..] else { panic!() };
        assert!(found.bench.is_some() && found.server.is_some() && found.folder == bin);
        let bench = bin.join(format!("llama-bench{}", std::env::consts::EXE_SUFFIX));
        let server = bin.join(format!("llama-server{}", std::env::consts::EXE_SUFFIX));
        let [only] = &find(std::slice::from_ref(&bench), &[]).unwrap()[..] else { panic!() };
        assert_eq!((only.bench.as_ref(), only.server.as_ref()), (Some(&bench), None));
        assert_eq!(find(&[bench, server], &[]).unwrap(), std::slice::from_ref(found), "one by one they are one peer");
    }

    #[test]
    fn the_first_build_on_the_path_is_taken_and_a_named_one_comes_before_it() {
        let (empty, one, two) = (folder(&[]), folder(&["llama-server"]), folder(&["llama-bench"]));
        let path = [&empty, &one, &two].map(|folder| folder.path().to_owned());
        let found = find(&[], &path).unwrap();
        assert!(found.len() == 1 && found[0].server.is_some() && found[0].bench.is_none());
        assert_eq!(find(&[two.path().to_owned()], &path).unwrap()[0].folder, two.path());
    }

    #[test]
    fn what_was_looked_for_and_where_is_told() {
        let (empty, other) = (folder(&[]), folder(&["llama-cli"]));
        let error = |named: &[PathBuf], path: &[PathBuf]| find(named, path).unwrap_err().to_string();
        let folder = empty.path().to_owned();
        for words in ["llama-bench", "llama-server", "PATH", "--peer", &folder.display().to_string()] {
            assert!(error(&[], std::slice::from_ref(&folder)).contains(words), "{words}");
        }
        assert!(error(std::slice::from_ref(&folder), &[]).contains(&folder.join("build/bin").display().to_string()));
        assert!(error(&[folder.join("nowhere")], &[]).contains("no such file or folder"));
        let cli = other.path().join(format!("llama-cli{}", std::env::consts::EXE_SUFFIX));
        assert!(error(&[cli], &[]).contains("neither llama-bench nor llama-server"));
        assert!(error(&[], &[]).contains("PATH (which is empty)"));
    }

    #[test]
    fn versions_are_read_in_old_and_new_words() {
        let named = |said: &str| version(said);
        assert_eq!(named("version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with").unwrap(), "0.5.0-dev (0c1e570)");
        assert_eq!(named("ggml init\nversion: 4000 (abc1234)\n").unwrap(), "4000 (abc1234)");
        assert_eq!(named("version: 7").unwrap(), "7");
        assert_eq!(named("error: unknown argument --version"), None);
        assert_eq!(named(""), None);
    }
}
